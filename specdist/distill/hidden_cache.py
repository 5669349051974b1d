"""The target's last hidden states on disk, beside the shards, within a budget of bytes.

One file a shard, ``hidden-00012.safetensors``: ``states`` [rows, width] of all examples end
to end, and ``rows`` int32, how many each example has. The rows of an example belong to its
last tokens but one: row ``i`` of ``r`` to token ``length - 1 - r + i``; earlier tokens have
none (a prefix cache had computed them). Files may be deleted: they are computed again.
Knows no model. Written by ``answers`` and ``teacher``, read by ``teacher``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdist.distill.files import written_whole
from specdist.distill.shards import Example

OPEN_FILES = 256
ELEMENT_BYTES = 2  # bfloat16 where the target runs in it, else float16


class HiddenCache:
    """The cache of one data folder."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._begins: dict[int, list[int]] = {}  # first row of each example, and the end
        self._slices: dict[int, Any] = {}

    def path(self, shard: int) -> Path:
        """Where the states of a shard lie."""
        return self._folder / f"hidden-{shard:05d}.safetensors"

    def has(self, shard: int, examples: Sequence[Example]) -> bool:
        """Whether the states of just these examples are there."""
        try:
            with safe_open(self.path(shard), framework="pt") as file:
                if (file.metadata() or {}).get("tokens") != _digest(examples):
                    return False
                rows = file.get_tensor("rows").tolist()
        except (OSError, SafetensorError):
            return False
        self._begins[shard] = [0, *accumulate(rows)]
        return True

    def write(self, shard: int, examples: Sequence[Example], states: Sequence[Tensor]) -> bool:
        """Keep the states of a shard; False when the budget does not allow it."""
        if not states or not all(bool(torch.isfinite(s).all()) for s in states):
            return False  # beyond float16's range: the teacher computes them again
        if not self.has_room(shard, sum(s.numel() for s in states)):
            return False
        tensors = {
            "states": torch.cat(list(states)),
            "rows": torch.tensor([len(s) for s in states], dtype=torch.int32),
        }
        with written_whole(self.path(shard)) as partial:
            save_file(tensors, partial, metadata={"tokens": _digest(examples)})
        self._slices.pop(shard, None)
        return self.has(shard, examples)

    def has_room(self, shard: int, num_elements: int) -> bool:
        """Whether the budget allows states of so many elements for a shard."""
        path = self.path(shard)
        old = path.stat().st_size if path.exists() else 0
        return self.num_bytes() - old + ELEMENT_BYTES * num_elements <= self._max_bytes

    def read(self, shard: int, index: int) -> Tensor:
        """The states of one example, [rows, width]; ``has`` was asked before."""
        begins = self._begins[shard]
        if shard not in self._slices:
            if len(self._slices) >= OPEN_FILES:
                self._slices.pop(next(iter(self._slices)))
            self._slices[shard] = safe_open(self.path(shard), framework="pt").get_slice("states")
        states: Tensor = self._slices[shard][begins[index] : begins[index + 1]]
        return states

    def num_bytes(self) -> int:
        """Size of all files of the cache."""
        return sum(p.stat().st_size for p in self._folder.glob("hidden-*.safetensors"))


def _digest(examples: Sequence[Example]) -> str:
    hashed = hashlib.sha256()
    for example in examples:
        hashed.update(example.tokens.tobytes())
    return hashed.hexdigest()[:16]
