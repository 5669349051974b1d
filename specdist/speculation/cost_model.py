"""C(n): what one engine step with n token rows costs, measured and kept up to date.

A staircase: cost is constant between two steps ends (kernel tiles, graph sizes), so that
only step ends are worth deciding about. Knows no engine: seconds are told to it. Filled
by the target worker at start-up and after every step, read by ``controller``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

DEFAULT_EDGES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class CostModel:
    """Fading mean of the measured seconds per stair, made monotone."""

    def __init__(self, edges: Sequence[int] = DEFAULT_EDGES, rate: float = 0.1) -> None:
        if list(edges) != sorted(set(edges)) or not edges or edges[0] < 1:
            raise ValueError(f"edges must be positive and rising, got {tuple(edges)}")
        self.edges = tuple(edges)
        self._rate = rate
        self._seconds: dict[int, float] = {}  # by index into edges
        self._counts: dict[int, int] = {}
        self._curve: tuple[float, ...] = ()

    @property
    def is_measured(self) -> bool:
        """There is at least one measurement."""
        return bool(self._seconds)

    def observe(self, num_rows: int, seconds: float) -> None:
        """One step with ``num_rows`` rows took ``seconds``."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"seconds must be positive and finite, got {seconds}")
        stair = min(self._stair(num_rows), len(self.edges) - 1)
        if num_rows > self.edges[-1]:
            seconds *= self.edges[-1] / num_rows
        known = self._seconds.get(stair, seconds)
        self._seconds[stair] = known + self._rate * (seconds - known)
        self._counts[stair] = min(self._counts.get(stair, 0) + 1, round(1 / self._rate))
        self._curve = self._fit()

    def step_s(self, num_rows: int) -> float:
        """Expected seconds of a step; never falls with more rows. LookupError if unmeasured."""
        if not self._curve:
            raise LookupError("the cost model has no measurement yet: profile the engine first")
        stair = self._stair(num_rows)
        if stair < len(self.edges):
            return self._curve[stair]
        return self._curve[-1] * num_rows / self.edges[-1]

    def step_end(self, num_rows: int) -> int:
        """The largest number of rows that costs the same as ``num_rows``."""
        stair = self._stair(num_rows)
        return self.edges[stair] if stair < len(self.edges) else num_rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a file or a message."""
        stairs = sorted(self._seconds)
        return {
            "edges": list(self.edges),
            "rate": self._rate,
            "seconds": {self.edges[i]: self._seconds[i] for i in stairs},
            "counts": {self.edges[i]: self._counts[i] for i in stairs},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostModel:
        """The inverse of ``to_dict``; keys may have become strings on the way."""
        model = cls(tuple(data["edges"]), data["rate"])
        counts = {int(edge): int(count) for edge, count in data["counts"].items()}
        for edge, seconds in data["seconds"].items():
            stair = model.edges.index(int(edge))
            model._seconds[stair] = float(seconds)
            model._counts[stair] = counts[int(edge)]
        model._curve = model._fit() if model._seconds else ()
        return model

    def _stair(self, num_rows: int) -> int:
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        return bisect_left(self.edges, num_rows)

    def _fit(self) -> tuple[float, ...]:
        """Pool falling neighbours (isotonic regression), then fill the unmeasured stairs."""
        pools: list[tuple[float, int, list[int]]] = []  # mean seconds, weight, stairs
        for stair in sorted(self._seconds):
            mean, weight, stairs = self._seconds[stair], self._counts[stair], [stair]
            while pools and pools[-1][0] >= mean:
                other, other_weight, other_stairs = pools.pop()
                mean = (mean * weight + other * other_weight) / (weight + other_weight)
                weight, stairs = weight + other_weight, other_stairs + stairs
            pools.append((mean, weight, stairs))
        known = {stair: mean for mean, _, stairs in pools for stair in stairs}
        return tuple(self._filled(known, i) for i in range(len(self.edges)))

    def _filled(self, known: Mapping[int, float], stair: int) -> float:
        """Between two measured stairs a straight line in the rows; outside, a fair guess."""
        if stair in known:
            return known[stair]
        below = [i for i in known if i < stair]
        above = [i for i in known if i > stair]
        if not below:
            return known[min(above)]
        left = max(below)
        if not above:  # never below the truth by much: grow with the rows, as a busy device does
            return known[left] * self.edges[stair] / self.edges[left]
        right = min(above)
        share = (self.edges[stair] - self.edges[left]) / (self.edges[right] - self.edges[left])
        return known[left] + share * (known[right] - known[left])
