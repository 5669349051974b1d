"""How a draft picks the children of a node: ranked for ``coupled``, drawn for the q-rules.

Knows no model and no tree. NaN in a draft's row ends here: such a row yields no
candidate. Called by the drafters; ``token_ranks`` feeds ``acceptance.LambdaFit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdist.speculation.noise import DRAFT, Noise
from specdist.speculation.sampling import SamplingState, adjusted_logits, log_probs
from specdist.speculation.selection import BitRow, FloatRow, IdRow, contenders

# Nats below the peak within which the best few tokens are looked for first.
_WIDTHS = (2.0, 6.0, 12.0, float("inf"))


class Ranked(NamedTuple):
    """The k best children of each row, best first; -inf where a row has fewer."""

    token_ids: Tensor  # int64 [n, k]
    log_q: Tensor  # float32 [n, k]
    scores: Tensor  # float64 [n, k]: log_q + noise_scale * gumbel


class SparseRow(NamedTuple):
    """A law that is zero outside ``token_ids``."""

    token_ids: tuple[int, ...]
    probs: tuple[float, ...]


class Draw(NamedTuple):
    """Children in the order they were drawn in, and the law they were drawn from."""

    token_ids: tuple[int, ...]
    row: SparseRow


def ranking_log_probs(
    logits: Tensor, state: SamplingState, paths: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """log q to rank children by: ``log_probs``, but not collapsed to one token when greedy.

    Any ranking is legal under ``coupled``, and a greedy target still deserves a second guess.
    """
    if state.is_greedy:
        return torch.log_softmax(adjusted_logits(logits, state, paths), dim=-1)
    return log_probs(logits, state, paths)


def rank_children(
    log_q: Tensor, noise: Noise, positions: Sequence[int], lam: float | Tensor, k: int
) -> Ranked:
    """The k tokens per row with the largest log q(x) + lam * g(x); ties: lowest id first.

    ``log_q``: float32 [n, vocab]; ``positions[i]``: the position that row i decides; g is
    the noise the target will use there; ``lam``: trust in it, one value or one per row.
    """
    num_rows, vocab = log_q.shape
    if len(positions) != num_rows:
        raise ValueError(f"one position per row is needed, got {len(positions)} for {num_rows}")
    if not 1 <= k <= vocab:
        raise ValueError(f"k must be in 1..{vocab}, got {k}")
    trust = lam.tolist() if isinstance(lam, Tensor) else [lam] * num_rows
    if log_q.device.type != "cpu":
        return _rank_on_device(log_q, noise, positions, trust, k)
    bits: dict[int, BitRow] = {}
    ranked = Ranked(
        torch.zeros((num_rows, k), dtype=torch.int64),
        torch.full((num_rows, k), -torch.inf),
        torch.full((num_rows, k), -torch.inf, dtype=torch.float64),
    )
    for i, row in enumerate(log_q.detach().numpy()):
        if trust[i] != 0 and positions[i] not in bits:  # nodes of one depth share their noise
            bits[positions[i]] = noise.row_bits(positions[i], vocab)
        ids, scores = _rank_row(row, bits.get(positions[i]), trust[i], k)
        ranked.token_ids[i, : len(ids)] = torch.from_numpy(ids)
        ranked.log_q[i, : len(ids)] = torch.from_numpy(row[ids])
        ranked.scores[i, : len(ids)] = torch.from_numpy(scores)
    return ranked


def draw_without_replacement(
    log_q: Tensor, k: int, noise: Noise, position: int, nonce: int, max_support: int = 64
) -> Draw:
    """Draw up to k children from q cut to its ``max_support`` likeliest tokens.

    ``log_q``: float32 [vocab]. Gumbel top-k, which is sampling without replacement in
    order. The law returned is, to the last digit, the one drawn from. A new ``nonce`` for
    each draw of a request: a redraw after a rejection must be independent of the first.
    Fewer than k only where q has fewer tokens, which depends on q and not on the draws.
    """
    row = log_q.detach().cpu().numpy()
    if not np.isfinite(row.max()):
        return Draw((), SparseRow((), ()))
    ids = np.sort(best_tokens(row, min(max_support, len(row))))
    weights = np.exp(row[ids].astype(np.float64) - float(row[ids].max()))
    weights /= weights.sum()
    ids, weights = ids[weights > 0], weights[weights > 0]
    gumbel = noise.gumbel(position, torch.from_numpy(ids), role=DRAFT, nonce=nonce).numpy()
    order = np.argsort(-(np.log(weights) + gumbel), kind="stable")[:k]
    return Draw(tuple(ids[order].tolist()), SparseRow(tuple(ids.tolist()), tuple(weights.tolist())))


def token_ranks(
    log_q: Tensor, noise: Noise, position: int, token: int, lams: Sequence[float]
) -> tuple[int, ...]:
    """Rank (0 is best) that ``token`` has in log q + lam * g, for each lam."""
    gumbel = noise.gumbel_rows([position], len(log_q), log_q.device)[0]
    return tuple(
        int((perturbed > perturbed[token]).sum())
        for perturbed in (log_q.double() + lam * gumbel for lam in lams)
    )


def best_tokens(row: FloatRow, k: int) -> IdRow:
    """Up to k ids with the largest finite entries, best first, ties to the lowest id."""
    peak = row.max()
    for width in _WIDTHS:
        ids = np.flatnonzero(row > peak - np.float32(width))
        if len(ids) >= k:
            break
    if len(ids) > 4 * k:
        bar = np.partition(row[ids], -k)[-k]
        ids = ids[row[ids] >= bar]
    return ids[np.argsort(-row[ids], kind="stable")[:k]]


def _rank_row(
    row: FloatRow, bits: BitRow | None, trust: float, k: int
) -> tuple[IdRow, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    if not np.isfinite(row.max()):
        return np.empty(0, dtype=np.int64), np.empty(0)
    if bits is None:
        ids = best_tokens(row, k)
        return ids, row[ids].astype(np.float64)
    ids, scores = contenders(row, bits, best_tokens(row, 8 * k), trust, k)
    order = np.argsort(-scores, kind="stable")[:k]
    order = order[np.isfinite(scores[order])]
    return ids[order], scores[order]


def _rank_on_device(
    log_q: Tensor, noise: Noise, positions: Sequence[int], trust: Sequence[float], k: int
) -> Ranked:
    rows = log_q.float()
    usable = torch.isfinite(rows.amax(dim=-1, keepdim=True))
    rows = rows.masked_fill(~usable, -torch.inf)
    scale = torch.tensor(trust, dtype=torch.float64, device=rows.device).unsqueeze(1)
    perturbed = rows.double()
    if any(trust):
        perturbed = perturbed + scale * noise.gumbel_rows(positions, rows.shape[1], rows.device)
    values, order = torch.sort(perturbed, dim=-1, descending=True, stable=True)
    order = order[:, :k]
    return Ranked(order, rows.gather(1, order), values[:, :k])
