"""Batches for training: which answers together, and which of their positions are learnt from.

A function of (seed, epoch) and (seed, step) alone, so that a resumed run goes on with the
same batches. Answers of like length stand together, so little is padding; a batch holds at
most so many tokens, padding included. Knows no model. Called by ``train``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdist.distill.dataset import Item

LENGTH_JITTER = 0.15  # so that an epoch's batches are not the last one's


@dataclass(frozen=True)
class Batch:
    """Right-padded answers, and the positions whose next token is learnt."""

    inputs: Tensor  # int64 [answers, longest]: all tokens but the last
    rows: Tensor  # int64 [positions]
    columns: Tensor  # int64 [positions]
    states: Tensor  # [positions, width]: the target's states there


def epoch_batches(
    items: Sequence[Item], batch_tokens: int, seed: int, epoch: int
) -> list[list[Item]]:
    """One shuffled pass over the answers."""
    rng = np.random.default_rng((seed, epoch))
    lengths = np.array([len(item.example.tokens) for item in items])
    keys = lengths * (1 + LENGTH_JITTER * (rng.random(len(items)) - 0.5))
    batches: list[list[Item]] = []
    longest = 0
    for index in np.argsort(keys, kind="stable"):
        longest = max(longest, int(lengths[index]))
        if not batches or (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = int(lengths[index])
        batches[-1].append(items[index])
    return [batches[i] for i in rng.permutation(len(batches))]


def batches_from(
    items: Sequence[Item], batch_tokens: int, seed: int, num_done: int
) -> Iterator[list[Item]]:
    """The batches behind the first ``num_done``, epoch after epoch without end."""
    epoch = 0
    while True:
        batches = epoch_batches(items, batch_tokens, seed, epoch)
        yield from batches[num_done:]
        num_done = max(0, num_done - len(batches))
        epoch += 1


def num_steps_of(
    items: Sequence[Item], batch_tokens: int, seed: int, accumulation: int, epochs: float
) -> int:
    """Steps that so many epochs take."""
    per_epoch = len(epoch_batches(items, batch_tokens, seed, 0))
    return max(1, math.ceil(per_epoch * epochs / accumulation))


def pad(sequences: Sequence[np.ndarray]) -> Tensor:
    """Right-padded rows.  # int64 [sequences, longest]"""
    longest = max(len(s) for s in sequences)
    padded = np.zeros((len(sequences), longest), np.int64)
    for row, tokens in enumerate(sequences):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)


def learnt_columns(
    item: Item, first_state: int, prefix_len: int, prompt_share: float, rng: np.random.Generator
) -> np.ndarray:
    """Positions of an answer that are learnt from, ascending.

    All that decide an answer token; of those that decide a prompt token, behind the shared
    prefix, a random share. ``first_state``: the first position with states of the target.
    """
    start = item.example.answer_start - 1
    prompt = np.arange(min(max(prefix_len - 1, 0), start), start)
    prompt = prompt[rng.random(len(prompt)) < prompt_share]
    answer = np.arange(start, len(item.example.tokens) - 1)
    columns = np.concatenate([prompt, answer])
    return columns[columns >= first_state]


def make_batch(
    items: Sequence[Item],
    states: Sequence[Tensor],
    prefix_len: int,
    prompt_share: float,
    rng: np.random.Generator,
) -> Batch:
    """Pad answers and pick their positions; ``states`` belong to the last positions of each."""
    rows, columns, picked = [], [], []
    for row, (item, own) in enumerate(zip(items, states, strict=True)):
        first = len(item.example.tokens) - 1 - len(own)
        chosen = learnt_columns(item, first, prefix_len, prompt_share, rng)
        columns.append(chosen)
        rows.append(np.full(len(chosen), row))
        picked.append(own[torch.from_numpy(chosen - first)])
    return Batch(
        inputs=pad([item.example.tokens[:-1] for item in items]),
        rows=torch.from_numpy(np.concatenate(rows)),
        columns=torch.from_numpy(np.concatenate(columns)),
        states=torch.cat(picked),
    )
