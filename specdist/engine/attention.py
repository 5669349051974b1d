"""Attention over the paged KV cache, as a transformers attention function.

The one place where a faster backend (a fused kernel) would be plugged in. Every layer
calls ``paged_attention`` with the rows of all sessions; the keyword ``batch``
(``specdist.engine.batch.Batch``) tells which KV each row may see. No context is copied for
the few rows of a decode: scores are taken on views of the cache, one product for each
physically contiguous run. Knows no sequences and no scheduling.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from specdist.engine.batch import Batch, Span

NAME = "specdist_paged"
SDPA_MIN_ROWS = 32  # from here on a fused kernel beats three products, and a copy of KV pays


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, rows, head_dim]
    key: Tensor,  # [1, kv_heads, rows, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    batch: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_checked_at_load: Any,
) -> tuple[Tensor, None]:
    """Store the rows' KV, then attend; returns [1, rows, heads, head_dim]."""
    keys, values = batch.layers[module.layer_idx]
    keys.index_copy_(1, batch.slots, key[0])
    values.index_copy_(1, batch.slots, value[0])
    heads, num_rows, dim = query.shape[1:]
    kv_heads = keys.shape[0]
    scale = dim**-0.5 if scaling is None else scaling
    # Query heads that share a KV head become rows of one product: [kv_heads, rows * group, dim].
    grouped = query[0].view(kv_heads, -1, num_rows, dim).transpose(1, 2)
    grouped = grouped.reshape(kv_heads, -1, dim)
    output = torch.empty_like(grouped)
    for span in batch.spans(sliding_window):
        if softcap is None and span.rows.stop - span.rows.start >= SDPA_MIN_ROWS:
            target = output.view(kv_heads, num_rows, -1, dim)[:, span.rows]
            _attend_chunk(span, query[:, :, span.rows], keys, values, scale, target)
        else:
            rows = span.grouped_rows
            _attend_rows(span, grouped[:, rows], keys, values, scale, softcap, output[:, rows])
    output = output.view(kv_heads, num_rows, heads // kv_heads, dim).transpose(0, 1)
    return output.reshape(1, num_rows, heads, dim), None


def _attend_rows(
    span: Span,
    query: Tensor,  # [kv_heads, rows * group, head_dim]
    keys: Tensor,
    values: Tensor,
    scale: float,
    softcap: float | None,
    output: Tensor,
) -> None:
    """A few rows: one score product and one value product for each run of KV."""
    runs = span.runs
    if softcap is None and query.dtype != torch.float32:
        # In half precision the fused kernel is two to three times faster than the products.
        attended = F.scaled_dot_product_attention(
            query[None],
            _joined(keys, runs)[None],
            _joined(values, runs)[None],
            attn_mask=span.grouped_mask,
            scale=scale,
        )
        output.copy_(attended[0])
        return
    parts = [_scores(query, keys[:, run], scale) for run in runs]
    scores = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    if softcap is not None:
        scores = torch.tanh_(scores.div_(softcap)).mul_(softcap)
    if span.grouped_mask is not None:
        scores += span.grouped_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    start = 0
    for run in runs:
        stop = start + run.stop - run.start
        part = weights[:, :, start:stop]
        if start == 0:
            torch.bmm(part, values[:, run], out=output)
        else:
            output.baddbmm_(part, values[:, run])
        start = stop


def _scores(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    no_bias = query.new_empty((1, 1, 1))  # beta=0: its content is never read
    return torch.baddbmm(no_bias, query, keys.transpose(1, 2), beta=0, alpha=scale)


def _attend_chunk(
    span: Span,
    query: Tensor,  # [1, heads, rows, head_dim]
    keys: Tensor,
    values: Tensor,
    scale: float,
    output: Tensor,  # [kv_heads, rows, group, head_dim]
) -> None:
    """Many rows: the library's fused kernel; several runs are joined first, which many rows pay."""
    attended = F.scaled_dot_product_attention(
        query,
        _joined(keys, span.runs)[None],
        _joined(values, span.runs)[None],
        attn_mask=None if span.is_plain_causal else span.mask,
        is_causal=span.is_plain_causal,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[0],
    )
    shape = (keys.shape[0], -1, query.shape[2], query.shape[3])
    output.copy_(attended[0].view(shape).transpose(1, 2))


def _joined(cache: Tensor, runs: list[slice]) -> Tensor:
    if len(runs) == 1:
        return cache[:, runs[0]]
    return torch.cat([cache[:, run] for run in runs], dim=1)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Masks come from the batch; the library is told to build none."""


AttentionInterface.register(NAME, paged_attention)
AttentionMaskInterface.register(NAME, _no_mask)
