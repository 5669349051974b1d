"""The KV tensor of one engine: one allocation for all layers, addressed by slot.

    data: [layers, 2 (keys, values), kv_heads, num_slots, head_dim]

Heads stand before slots, so that a contiguous run of slots is a strided view ready for a
batched matrix product. Slot = block * block_size + offset. Knows no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class KvShape(NamedTuple):
    """What one token's KV looks like."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KvCache:
    """Storage plus the two ways of touching it that are not attention."""

    def __init__(self, shape: KvShape, num_slots: int, device: torch.device) -> None:
        layers, heads, dim = shape.num_layers, shape.num_kv_heads, shape.head_dim
        # zeros: the kernel hands out untouched pages lazily, so unused slots cost nothing.
        self.data = torch.zeros(
            (layers, 2, heads, num_slots, dim), dtype=shape.dtype, device=device
        )
        self.layers: list[tuple[Tensor, Tensor]] = [(kv[0], kv[1]) for kv in self.data]

    @property
    def num_bytes(self) -> int:
        """Size of the allocation."""
        return self.data.numel() * self.data.itemsize

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots to other slots in every layer; sources are read before targets change."""
        if not sources:
            return
        rows = self.data.index_select(3, self._index(sources))
        self.data.index_copy_(3, self._index(targets), rows)

    def read(self, slots: Sequence[int]) -> Tensor:
        """A copy of some slots, [layers, 2, kv_heads, len(slots), head_dim]; for checks."""
        return self.data.index_select(3, self._index(slots))

    def _index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.data.device)
