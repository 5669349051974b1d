"""The answers a training run uses: a fixed list of shards, split into training and held out.

The list is written down when training begins, so that answers may still be generated
beside it without changing what a resumed run sees. The split goes by the group of a prompt
(its origin), so equal prompts, and prompts made from one another, fall on the same side.
Knows no model. Called by ``training``; read by ``train`` and ``agreement``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdist.distill.files import read_json_file, write_json
from specdist.distill.shards import Example, read_shard, shard_numbers, shard_path
from specdist.errors import ConfigError
from specdist.models.cache import file_sha256

SNAPSHOT = "data.json"


class Item(NamedTuple):
    """One answer, and where its states are in the cache."""

    shard: int
    place: int  # within the shard
    example: Example


@dataclass(frozen=True)
class Dataset:
    """What a run trains on and what it is measured on."""

    shards: dict[int, list[Example]]
    training: list[Item]
    held_out: list[Item]
    prefix_len: int  # leading tokens that all answers share (the chat template's opening)

    @property
    def num_answer_tokens(self) -> int:
        """Answer tokens of the training part."""
        return sum(item.example.num_answer_tokens for item in self.training)

    @property
    def num_tokens(self) -> int:
        """Tokens of the training part, prompts included."""
        return sum(len(item.example.tokens) for item in self.training)


def snapshot(data_folder: Path, train_folder: Path) -> dict[str, str]:
    """The shards of this training, name to hash: as written down, or all that are there now."""
    path = train_folder / SNAPSHOT
    if path.is_file():
        known: dict[str, str] = read_json_file(path)
        return known
    numbers = shard_numbers(data_folder)
    if not numbers:
        raise ConfigError(f"{data_folder} has no shard-*.safetensors: run the phase answers first")
    paths = [shard_path(data_folder, n) for n in numbers]
    found = {p.name: file_sha256(p) for p in paths}
    write_json(path, found)
    return found


def load_dataset(
    data_folder: Path, shards: dict[str, Any], digest: str | None, held_out: float
) -> Dataset:
    """Read the shards of a snapshot; ConfigError when one is gone or has changed."""
    loaded: dict[int, list[Example]] = {}
    for name, sha256 in shards.items():
        path = data_folder / name
        if not path.is_file() or file_sha256(path) != sha256:
            raise ConfigError(f"{path} is not the shard that this training began with")
        loaded[int(path.stem.split("-")[1])] = read_shard(path, digest)
    items = [Item(n, i, e) for n, examples in loaded.items() for i, e in enumerate(examples)]
    items = [item for item in items if item.example.num_answer_tokens and item.example.answer_start]
    sides: tuple[list[Item], list[Item]] = ([], [])
    for item in items:
        sides[is_held_out(item.example.group, held_out)].append(item)
    if not sides[0] or not sides[1]:
        raise ConfigError(
            f"{len(sides[0])} answers to train on and {len(sides[1])} held out: generate more "
            "answers (num_tokens), or change held_out"
        )
    return Dataset(loaded, *sides, shared_prefix_len(items))


def is_held_out(group: int, share: float) -> bool:
    """On which side a group falls; stays the same while data grow."""
    place = hashlib.sha256(f"held out {group}".encode()).digest()[:8]
    return int.from_bytes(place, "big") / 2**64 < share


def shared_prefix_len(items: Sequence[Item]) -> int:
    """Number of leading tokens that nearly all answers have in common.

    Nearly all: a conversation with its own system message opens otherwise.
    """
    first = items[0].example.tokens
    counts = np.zeros(len(first) + 1, np.int64)
    for item in items:
        tokens = item.example.tokens[: len(first)]
        same = tokens == first[: len(tokens)]
        counts[: len(tokens) if same.all() else int(same.argmin())] += 1
    return int((counts >= 0.9 * len(items)).argmin())


def subset(dataset: Dataset, share: float) -> Dataset:
    """The same with only a part of the training answers, evenly spread."""
    size = max(1, round(len(dataset.training) * share))
    chosen = np.linspace(0, len(dataset.training) - 1, size).astype(int)
    return Dataset(
        dataset.shards,
        [dataset.training[i] for i in chosen],
        dataset.held_out,
        dataset.prefix_len,
    )
