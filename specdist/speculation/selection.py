"""How one token is chosen from one row: Gumbel-max, inverse distribution, accept or not.

Knows no trees and no logits processors. Called by the rules and by ``draft_sampling``.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdist.speculation.noise import ACCEPT, NEXT, Noise, gumbel_from_bits

FloatRow = npt.NDArray[np.float32]
BitRow = npt.NDArray[np.uint32]
IdRow = npt.NDArray[np.int64]
# Times the noise scale: with less, more tokens pass the bound; with more, more are near.
NEAR_BAR = 8.0


class Chance(Protocol):
    """The two kinds of random decision a rejection rule makes."""

    def accept(self, probability: float) -> bool:
        """True with ``probability``; never true for 0, always for 1."""

    def draw(self, weights: Tensor) -> int:
        """An index drawn in proportion to ``weights``; never one of weight 0."""


class UniformSource(Protocol):
    """What the rejection rules need of the noise."""

    def uniform(self, position: int, role: int, index: int = 0) -> float: ...


class KeyedChance:
    """Decisions of one verification, from uniforms keyed by its first position.

    The key is the position at which the step began, not the one under test: a position
    that a step only tested is decided by a later step, which must meet fresh numbers.
    """

    def __init__(self, noise: UniformSource, position: int) -> None:
        self._noise = noise
        self._position = position
        self._index = 0

    def accept(self, probability: float) -> bool:
        """u < probability with u in [0, 1): strict, so that 0 never passes."""
        return self._next(ACCEPT) < probability

    def draw(self, weights: Tensor) -> int:
        """Inverse distribution function at one uniform."""
        return draw_index(weights, self._next(NEXT))

    def _next(self, role: int) -> float:
        self._index += 1
        return self._noise.uniform(self._position, role, self._index)


def draw_index(weights: Tensor, uniform: float) -> int:
    """The first index whose cumulated weight exceeds ``uniform`` times the total.

    ``weights``: float64 [vocab], not negative, need not be normalised; ``uniform`` in [0, 1).
    """
    cumulated = weights.cumsum(0)
    total = float(cumulated[-1])
    if not 0 < total < float("inf"):
        raise FloatingPointError(f"weights must have a positive finite sum, got {total}")
    index = int(torch.searchsorted(cumulated, uniform * total, right=True))
    if index < len(weights) and float(weights[index]) > 0:
        return index
    # Rounding in a parallel sum, or uniform * total rounded up to the total.
    support = torch.nonzero(weights > 0).squeeze(1)
    later = support[support >= index]
    return int(later[0]) if len(later) else int(support[-1])


def argmax(row: Tensor) -> int:
    """The largest entry, lowest index first; FloatingPointError if there is none."""
    if row.device.type != "cpu":
        index = int(row.argmax())
        best = float(row[index])
    else:
        values = row.detach().numpy()  # many times faster than torch here
        index = int(values.argmax())
        best = float(values[index])
    if not np.isfinite(best):
        raise FloatingPointError(f"no largest token: the row holds {best}")
    return index


def gumbel_argmax(scores: Tensor, noise: Noise, position: int) -> int:
    """argmax of scores + gumbel: one exact sample of softmax(scores).

    ``scores``: float32 [vocab], log probabilities up to a constant, -inf outside the
    support. Ties go to the lowest id. On a CPU only the few tokens whose noise can
    win are worked out; the result is that of the full sum.
    """
    if scores.device.type != "cpu":
        every = torch.arange(len(scores), device=scores.device)
        return argmax(scores.double() + noise.gumbel(position, every))
    row = scores.detach().numpy()
    bits = noise.row_bits(position, len(row))
    best = argmax(scores)
    ids, perturbed = contenders(row, bits, np.array([best]), 1.0, 1)
    return int(ids[perturbed.argmax()])


def contenders(
    row: FloatRow, bits: BitRow, starters: IdRow, noise_scale: float, k: int
) -> tuple[IdRow, npt.NDArray[np.float64]]:
    """A few tokens that hold the k best of row + noise_scale * gumbel.

    Returns ids in ascending order and their perturbed scores (float64). The bar b is what the
    k-th best of ``starters`` (likely ids, at least k or all there are) reaches. A token reaches
    it only if v = bits / 2**32 is below 1 - exp(-t) <= t, t = exp((row - b) / noise_scale).
    Tokens far below the bar share one bound on t, which few pass; those near it are all
    taken. So most of a row costs two comparisons. A flat row costs its full noise.
    """
    bar = float(np.sort(perturb(row, bits, starters, noise_scale))[-k:][0])
    near = np.float32(bar - NEAR_BAR * noise_scale)
    # From near as it was rounded; above the bar only for a tiny noise scale.
    bound = math.exp(min((float(near) - bar) / noise_scale, 0.0))
    rare = np.uint32(min(bound * 2.0**32 * (1 + 1e-9), 2.0**32 - 1))
    able = bits <= rare
    able |= row > near
    able[starters] = True
    ids = np.flatnonzero(able)
    return ids, perturb(row, bits, ids, noise_scale)


def perturb(row: FloatRow, bits: BitRow, ids: IdRow, noise_scale: float) -> npt.NDArray[np.float64]:
    """row + noise_scale * gumbel at ``ids``, float64."""
    return row[ids].astype(np.float64) + noise_scale * gumbel_from_bits(bits[ids])
