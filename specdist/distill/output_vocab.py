"""Which tokens a draft can propose: those that the target is expected to say most often.

Expected, not counted: the target's law is summed over positions of its training answers,
which is smoother in the tail than the tokens that were drawn. End tokens and the special
tokens in use are always among them. Called by ``training`` and ``estimate``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from specdist.distill.dataset import Dataset
from specdist.distill.teacher import Teacher
from specdist.errors import ConfigError

SMALL_VOCAB = 16_384  # up to here all tokens are outputs unless a number is asked for
DEFAULT_OUTPUTS = 8192
MOST_POSITIONS = 20_000
BATCH_ANSWERS = 32
SPECIAL_SHARE = 4  # special tokens may take one of so many places


def num_outputs(output_vocab: str, vocab_size: int) -> int | None:
    """How many outputs the setting asks for of a target of this size; None: all tokens."""
    if output_vocab == "auto":
        return None if vocab_size <= SMALL_VOCAB else DEFAULT_OUTPUTS
    return None if output_vocab == "all" else int(output_vocab)


def choose_outputs(
    size: int, dataset: Dataset, teacher: Teacher, usable: int, special: Iterable[int]
) -> Tensor:
    """The ids, sorted and unique.  # int64 [size]

    ``usable``: ids from there on are no tokens. ``special``: the tokenizer's special ids.
    """
    expected = expected_counts(dataset, teacher)[:usable]
    prompts = np.zeros(len(expected), np.int64)
    said = np.zeros(len(expected), np.int64)
    for item in dataset.training:
        tokens, start = item.example.tokens, item.example.answer_start
        prompts += np.bincount(tokens[:start], minlength=len(prompts))[: len(prompts)]
        said += np.bincount(tokens[start:], minlength=len(said))[: len(said)]
    forced = {i for i in special if i < len(expected)}
    if len(forced) * SPECIAL_SHARE > size:  # reserved ones that nobody says
        forced = {i for i in forced if said[i]}
    return most_frequent(expected, torch.from_numpy(prompts), sorted(forced), size)


def most_frequent(expected: Tensor, prompts: Tensor, forced: list[int], size: int) -> Tensor:
    """The forced ids, then the most expected ones; ties go by the prompts, then the lowest id."""
    if not max(1, len(forced)) <= size <= len(expected):
        raise ConfigError(
            f"output_vocab must be from {max(1, len(forced))} to {len(expected)}, got {size}"
        )
    by_prompt = torch.sort(prompts, descending=True, stable=True).indices
    order = by_prompt[torch.sort(expected[by_prompt], descending=True, stable=True).indices]
    is_forced = torch.zeros(len(expected), dtype=torch.bool)
    is_forced[forced] = True
    ranked = torch.cat([order[is_forced[order]], order[~is_forced[order]]])
    return ranked[:size].sort().values


def expected_counts(dataset: Dataset, teacher: Teacher) -> Tensor:
    """How often the target is expected to say each token.  # float64 [vocab]"""
    counts = torch.zeros(teacher.head.weight.shape[0], dtype=torch.float64)
    stride = max(1, -(-dataset.num_answer_tokens // MOST_POSITIONS))
    items = dataset.training
    for first in range(0, len(items), BATCH_ANSWERS):
        group = items[first : first + BATCH_ANSWERS]
        rows = []
        for offset, (item, states) in enumerate(zip(group, teacher.states_of(group), strict=True)):
            num = min(item.example.num_answer_tokens, len(states))
            rows.append(states[len(states) - num + (first + offset) % stride :: stride])
        states = torch.cat(rows)
        if len(states):
            counts += teacher.logits(states).softmax(dim=-1).sum(dim=0).double().cpu()
    return counts
