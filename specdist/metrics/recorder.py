"""Counting inside one process: cheap, thread-safe, emptied by ``take_delta``.

Every part of the application gets one ``Recorder`` and calls it; ``deployments`` carries
the deltas to one place, where ``specdist.metrics.totals`` adds them up. Knows the
catalogue, no wire and no clock.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import TypedDict

from specdist.metrics.catalog import get_metric

Series = tuple[str, tuple[str, ...]]  # name, label values in the catalogue's order


class Distribution(TypedDict):
    """Observations of one histogram: counts per bucket (not cumulative), and their sum."""

    buckets: list[int]  # one more than the catalogue's bounds: the last is above them all
    sum: float


class Delta(TypedDict):
    """What one source counted since the delta before; plain data, safe to pickle."""

    source: str  # "<deployment>:<replica>"
    counters: dict[Series, float]
    histograms: dict[Series, Distribution]
    gauges: dict[Series, float]  # present values, all of them


class Recorder:
    """Counters, histograms and gauges of one replica."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._counters: dict[Series, float] = {}
        self._histograms: dict[Series, Distribution] = {}
        self._gauges: dict[Series, float] = {}

    def count(self, name: str, value: float = 1, **labels: str | int) -> None:
        """Add to a counter; ``value`` must not be negative."""
        if value < 0:
            raise ValueError(f"counter {name} can only grow, got {value}")
        series = _series(name, "counter", labels)
        with self._lock:
            self._counters[series] = self._counters.get(series, 0) + value

    def gauge(self, name: str, value: float, **labels: str | int) -> None:
        """Set a gauge."""
        series = _series(name, "gauge", labels)
        with self._lock:
            self._gauges[series] = value

    def observe(self, name: str, value: float, **labels: str | int) -> None:
        """Add one observation to a histogram."""
        series = _series(name, "histogram", labels)
        bounds = get_metric(name, "histogram").buckets
        with self._lock:
            into = self._histograms.get(series)
            if into is None:
                into = self._histograms[series] = empty_distribution(bounds)
            into["buckets"][bisect.bisect_left(bounds, value)] += 1
            into["sum"] += value

    def take_delta(self) -> Delta:
        """What was counted since the last call, and the present gauges."""
        with self._lock:
            delta = Delta(
                source=self.source,
                counters=self._counters,
                histograms=self._histograms,
                gauges=dict(self._gauges),
            )
            self._counters, self._histograms = {}, {}
        return delta


def empty_distribution(bounds: Sequence[float]) -> Distribution:
    """No observations."""
    return Distribution(buckets=[0] * (len(bounds) + 1), sum=0.0)


def _series(name: str, kind: str, labels: dict[str, str | int]) -> Series:
    metric = get_metric(name, kind)  # type: ignore[arg-type]
    if len(labels) != len(metric.labels) or any(key not in labels for key in metric.labels):
        raise ValueError(f"metric {name} has labels {metric.labels}, got {tuple(labels)}")
    return name, tuple(str(labels[key]) for key in metric.labels)
