"""Token-id shards: the target's answers on disk, and batches of them for training.

A shard is one safetensors file with flat arrays (see ``write_shard``). Knows no prompt, no
tokenizer and no model. Called by ``short``, ``train`` and ``evaluate``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


class Example(NamedTuple):
    """One prompt with the target's answer."""

    tokens: Tensor  # int64 [num_tokens], prompt then answer
    hidden: Tensor  # float16 [num_tokens - 1, width]: the target's state at each token but the last
    answer_start: int
    temperature: float
    kind: str


class Batch(NamedTuple):
    """Right-padded examples; the last token of each is a label only."""

    inputs: Tensor  # int64 [batch, longest]
    labels: Tensor  # int64 [batch, longest]: the token that follows
    hidden: Tensor  # float32 [batch, longest, width]
    weights: Tensor  # float32 [batch, longest]: 1 where an answer token is predicted, 0 on padding


def write_shard(path: Path, examples: Sequence[Example]) -> None:
    """Write one shard; the file appears under its name only when it is whole.

    Layout: ``tokens`` int32, all examples end to end; ``lengths``, ``answer_starts`` int32 and
    ``temperatures`` float32, one each; ``hidden`` float16, (length - 1) rows per example.
    """
    tensors = {
        "tokens": torch.cat([e.tokens for e in examples]).int(),
        "hidden": torch.cat([e.hidden for e in examples]),
        "lengths": torch.tensor([len(e.tokens) for e in examples], dtype=torch.int32),
        "answer_starts": torch.tensor([e.answer_start for e in examples], dtype=torch.int32),
        "temperatures": torch.tensor([e.temperature for e in examples], dtype=torch.float32),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"kinds": json.dumps([e.kind for e in examples])})
    partial.replace(path)


def read_shard(path: Path) -> list[Example]:
    """Read one shard back."""
    with safe_open(path, framework="pt") as file:
        flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kinds = json.loads(file.metadata()["kinds"])
    lengths = flat["lengths"].tolist()
    tokens = flat["tokens"].long().split(lengths)
    hidden = flat["hidden"].split([n - 1 for n in lengths])
    starts, temperatures = flat["answer_starts"].tolist(), flat["temperatures"].tolist()
    columns = zip(tokens, hidden, starts, temperatures, kinds, strict=True)
    return [Example(*row) for row in columns]


def read_shards(folder: Path) -> list[Example]:
    """Every example of a folder, in the order of the shards' names."""
    paths = sorted(folder.glob("shard-*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"expected shard-*.safetensors files in {folder}, found none")
    return [example for path in paths for example in read_shard(path)]


def split_held_out(
    examples: Sequence[Example], share: float
) -> tuple[list[Example], list[Example]]:
    """(training, held out), decided by a hash of the prompt.

    So equal prompts fall on the same side, and an example stays on its side while data grow.
    """
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        prompt = example.tokens[: example.answer_start].numpy().tobytes()
        place = int.from_bytes(hashlib.sha256(prompt).digest()[:8], "big") / 2**64
        sides[place < share].append(example)
    return sides


def token_counts(examples: Sequence[Example], vocab_size: int) -> tuple[Tensor, Tensor]:
    """How often each token occurs in (answers, prompts).  # int64 [vocab_size] each"""
    answers = torch.cat([e.tokens[e.answer_start :] for e in examples])
    prompts = torch.cat([e.tokens[: e.answer_start] for e in examples])
    return answers.bincount(minlength=vocab_size), prompts.bincount(minlength=vocab_size)


def shared_prefix_len(examples: Sequence[Example]) -> int:
    """Number of leading tokens that all examples have in common (the chat template's opening)."""
    shortest = min(len(e.tokens) for e in examples)
    heads = torch.stack([e.tokens[:shortest] for e in examples])
    same = (heads == heads[0]).all(dim=0).long()
    return int(same.cumprod(dim=0).sum())


def collate(examples: Sequence[Example], prompt_weight: float, prefix_len: int) -> Batch:
    """Pad to the longest; prompt tokens behind the shared prefix weigh ``prompt_weight``."""
    longest = max(len(e.tokens) for e in examples) - 1
    width = examples[0].hidden.shape[1]
    inputs = torch.zeros(len(examples), longest, dtype=torch.int64)
    labels = torch.zeros_like(inputs)
    hidden = torch.zeros(len(examples), longest, width)
    weights = torch.zeros(len(examples), longest)
    for row, example in enumerate(examples):
        size = len(example.tokens) - 1
        inputs[row, :size] = example.tokens[:-1]
        labels[row, :size] = example.tokens[1:]
        hidden[row, :size] = example.hidden
        weights[row, max(prefix_len - 1, 0) : size] = prompt_weight
        weights[row, example.answer_start - 1 : size] = 1.0
    return Batch(inputs, labels, hidden, weights)


def epoch_batches(
    examples: Sequence[Example], batch_size: int, seed: int, epoch: int
) -> Iterator[list[Example]]:
    """One shuffled pass in batches of similar length; the same (seed, epoch), the same batches."""
    rng = random.Random(seed * 1_000_003 + epoch)
    order = [(len(e.tokens) + rng.randint(-40, 40), rng.random(), e) for e in examples]
    order.sort(key=lambda item: item[:2])
    sized = [item[2] for item in order]
    batches = [sized[i : i + batch_size] for i in range(0, len(sized), batch_size)]
    rng.shuffle(batches)
    yield from batches
