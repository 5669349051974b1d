"""One sequence in the engine: committed tokens, how far their KV is computed, and the region.

Slots of a sequence (slot i lives in block ``block_table[i // block_size]``):

    | committed, KV computed         | speculative region: a tree of extra rows |
    0 ................ num_computed   num_computed + 0, + 1, ... (region index)

A region row's slot says nothing about its position: siblings share one position,
``num_computed + depth`` (depth 0 for children of the last computed token). Plain data:
the engine changes it, the scheduler and the workers read it; the worker appends to
``tokens`` what was committed. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(eq=False, slots=True)
class Sequence:
    """Mutable state of one session on one engine."""

    session_id: str
    tokens: list[int]  # committed; may run ahead of num_computed
    num_computed: int = 0  # committed tokens whose KV is in the cache
    region_tokens: list[int] = field(default_factory=list)
    region_parents: list[int] = field(default_factory=list)  # region index; -1: last computed token
    region_depths: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0  # tokens that the prefix cache gave at the latest attach
    prefix_nodes: list[int] = field(default_factory=list)  # prefix-cache node of each full block

    @property
    def num_uncomputed(self) -> int:
        """Committed tokens still to be computed; 1 means ready to decode."""
        return len(self.tokens) - self.num_computed

    @property
    def num_slots_used(self) -> int:
        """Slots that hold KV now, region included."""
        return self.num_computed + len(self.region_tokens)

    def depths_of(self, parents: Items[int]) -> list[int]:
        """Depths of new region rows whose parents are given (old rows first, then new ones)."""
        depths = list(self.region_depths)
        start = len(depths)
        for row, parent in enumerate(parents, start):
            if not -1 <= parent < row:
                raise ValueError(
                    f"parent of region row {row} must be between -1 and {row - 1}, got {parent}"
                )
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths[start:]

    def clear_region(self) -> None:
        """Forget every speculative row."""
        self.region_tokens.clear()
        self.region_parents.clear()
        self.region_depths.clear()


class Rows(NamedTuple):
    """New rows for one sequence in one forward pass."""

    seq: Sequence
    tokens: Items[int]
    parents: Items[int]  # region index (old rows 0..S-1, new ones S..); -1: last computed token
    logits: Items[int]  # which of the new rows need logits


class KvUsage(NamedTuple):
    """Blocks of the KV pool by state, and its size in bytes."""

    num_free: int
    num_cached: int  # content kept for prefix reuse, given up on demand
    num_held: int  # used by at least one sequence
    num_bytes: int

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return self.num_free + self.num_cached + self.num_held

    @property
    def used_ratio(self) -> float:
        """Held blocks over all blocks."""
        return self.num_held / self.num_blocks


def chain_rows(seq: Sequence, tokens: Items[int], logits: Items[int] = ()) -> Rows:
    """Rows for a plain run of tokens behind the last computed one (a prefill chunk)."""
    start = len(seq.region_tokens)
    parents = [-1, *range(start, start + len(tokens) - 1)]
    return Rows(seq, tokens, parents, logits)
