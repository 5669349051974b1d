"""One forward pass, laid out: rows of all items one behind the other, and what each may see.

A row sees the committed tokens of its own sequence, its ancestors in the speculative
region and itself; layers with a window only what lies inside it. The layout is computed
once per forward pass and shared by all layers. Called by the engine; read by
``specdist.engine.attention``. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdist.engine.sequence import Rows


class ItemLayout(NamedTuple):
    """What is known about one item before any layer asks."""

    rows: Rows
    depths: list[int]  # of the new rows
    block_size: int
    start: int  # first row of the item in the batch

    @property
    def num_rows(self) -> int:
        """New rows of the item."""
        return len(self.rows.tokens)

    @property
    def num_context(self) -> int:
        """Slots of the sequence in use once the new rows are stored."""
        return self.rows.seq.num_slots_used + self.num_rows

    @property
    def positions(self) -> list[int]:
        """Positions of the new rows."""
        base = self.rows.seq.num_computed
        return [base + depth for depth in self.depths]

    @property
    def slots(self) -> list[int]:
        """Physical slots of the new rows."""
        seq = self.rows.seq
        return physical_slots(
            seq.block_table, self.block_size, seq.num_slots_used, self.num_context
        )

    @property
    def is_chain(self) -> bool:
        """Whether the item is one plain run behind the committed tokens."""
        return not self.rows.seq.region_tokens and self.depths == list(range(self.num_rows))


def physical_slots(block_table: Items[int], block_size: int, start: int, stop: int) -> list[int]:
    """Physical slots of the sequence's slots start .. stop-1."""
    return [
        block_table[slot // block_size] * block_size + slot % block_size
        for slot in range(start, stop)
    ]


def contiguous_runs(block_table: Items[int], block_size: int, start: int, stop: int) -> list[slice]:
    """The sequence's slots start .. stop-1 as slices of physically contiguous slots."""
    runs: list[slice] = []
    slot = start
    while slot < stop:
        index = slot // block_size
        first = block_table[index] * block_size + slot % block_size
        last = index
        while (last + 1) * block_size < stop and block_table[last + 1] == block_table[last] + 1:
            last += 1
        end = min((last + 1) * block_size, stop)
        runs.append(slice(first, first + end - slot))
        slot = end
    return runs


class Span:
    """One item as one kind of layer sees it: its rows, the runs of KV to read, and the mask."""

    def __init__(self, layout: ItemLayout, window: int | None, options: BatchOptions) -> None:
        seq = layout.rows.seq
        self.rows = slice(layout.start, layout.start + layout.num_rows)
        self.grouped_rows = slice(
            self.rows.start * options.group_size, self.rows.stop * options.group_size
        )
        self._options = options
        first = 0
        if window is not None:
            # Region slots are not in order of position: they are never trimmed.
            first = min(max(0, min(layout.positions) - window + 1), seq.num_computed)
        self.num_columns = layout.num_context - first
        self.runs = contiguous_runs(seq.block_table, layout.block_size, first, layout.num_context)
        self.is_plain_causal = layout.is_chain and not seq.num_computed and first == 0
        hidden = _hidden(layout, window)
        self._hidden = None if hidden is None else hidden[:, first:]
        self.is_plain_causal &= window is None or window >= layout.num_context

    @cached_property
    def mask(self) -> Tensor | None:
        """Additive mask [rows, columns], None when everything is visible."""
        if self._hidden is None:
            return None
        hidden = torch.from_numpy(self._hidden).to(self._options.device)
        mask = torch.zeros(hidden.shape, dtype=self._options.dtype, device=self._options.device)
        return mask.masked_fill_(hidden, -torch.inf)

    @cached_property
    def grouped_mask(self) -> Tensor | None:
        """The mask with each row repeated for the query heads that share a KV head."""
        if self.mask is None:
            return None
        return self.mask.repeat_interleave(self._options.group_size, dim=0)


def _hidden(layout: ItemLayout, window: int | None) -> np.ndarray | None:
    """What the new rows must not see, [rows, context]; None if they see everything."""
    seq = layout.rows.seq
    positions = np.array(layout.positions)
    windowed = window is not None and positions.max() >= window
    if layout.num_rows == 1 and layout.is_chain and not windowed:
        return None
    hidden = np.zeros((layout.num_rows, layout.num_context), dtype=bool)
    hidden[:, seq.num_computed :] = ~_ancestors(layout)
    if windowed:
        region = seq.num_computed + np.array([*seq.region_depths, *layout.depths])
        columns = np.concatenate([np.arange(seq.num_computed), region])
        hidden |= columns[None, :] <= positions[:, None] - window
    return hidden if hidden.any() else None


def _ancestors(layout: ItemLayout) -> np.ndarray:
    """[new rows, region rows]: which region rows are the row itself or its ancestors."""
    seq, num_rows = layout.rows.seq, layout.num_rows
    if layout.is_chain:
        return np.tri(num_rows, dtype=bool)
    parents = [*seq.region_parents, *layout.rows.parents]
    seen = np.eye(len(parents), dtype=bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen[-num_rows:]


class BatchOptions(NamedTuple):
    """What the layout must know about the model: query heads per KV head, mask type, device."""

    group_size: int
    dtype: torch.dtype
    device: torch.device


class Batch:
    """All items of one forward pass; handed to every attention layer as a keyword argument."""

    def __init__(
        self,
        items: Items[Rows],
        block_size: int,
        layers: list[tuple[Tensor, Tensor]],
        options: BatchOptions,
    ) -> None:
        self.layers = layers  # (keys, values) of each layer, [kv_heads, num_slots, head_dim]
        self.layouts: list[ItemLayout] = []
        start = 0
        for rows in items:
            layout = ItemLayout(rows, rows.seq.depths_of(rows.parents), block_size, start)
            self.layouts.append(layout)
            start += layout.num_rows
        self.num_rows = start
        self._options = options
        self._spans: dict[int | None, list[Span]] = {}
        self.input_ids = self._tensor([t for lay in self.layouts for t in lay.rows.tokens])
        self.positions = self._tensor([p for lay in self.layouts for p in lay.positions])
        self.slots = self._tensor([s for lay in self.layouts for s in lay.slots])
        wanted = [lay.start + row for lay in self.layouts for row in lay.rows.logits]
        self.logit_rows = self._tensor(wanted)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._options.device)

    def spans(self, window: int | None) -> list[Span]:
        """The items as layers with this window see them."""
        if window not in self._spans:
            self._spans[window] = [Span(lay, window, self._options) for lay in self.layouts]
        return self._spans[window]
