"""Deltas of all replicas added up, and written as Prometheus text.

Counters and histograms only ever grow: what a replica counted stays counted when it dies,
and a delta that is delivered twice is counted once. Gauges are forgotten when their
source has been silent for ``gauge_ttl_s``. Used by ``deployments.metrics_hub``; time is
an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from specdist.metrics.catalog import CATALOG, MEAN_GAUGES, ROWS, Metric
from specdist.metrics.recorder import Delta, Distribution, Series, empty_distribution

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REPLICAS = "specdist_replicas"


class _Source(NamedTuple):
    sequence: int
    heard_s: float
    gauges: dict[Series, float]


class Totals(Collector):
    """The whole application's numbers."""

    def __init__(self, gauge_ttl_s: float = 5.0) -> None:
        self._gauge_ttl_s = gauge_ttl_s
        self._counters: dict[Series, float] = {}
        self._histograms: dict[Series, Distribution] = {}
        self._sources: dict[str, _Source] = {}

    def add(self, delta: Delta, sequence: int, now_s: float) -> bool:
        """Add a delta; False if this or a later one of its source was added before."""
        source = self._sources.get(delta["source"])
        if source is not None and sequence <= source.sequence:
            return False
        self._sources[delta["source"]] = _Source(sequence, now_s, delta["gauges"])
        for series, value in delta["counters"].items():
            self._counters[series] = self._counters.get(series, 0) + value
        for series, observed in delta["histograms"].items():
            into = self._histograms.get(series)
            if into is None:
                into = self._histograms[series] = empty_distribution(CATALOG[series[0]].buckets)
            into["sum"] += observed["sum"]
            into["buckets"] = [
                a + b for a, b in zip(into["buckets"], observed["buckets"], strict=True)
            ]
        return True

    def value(self, name: str, *labels: str) -> float:
        """A counter's total."""
        return self._counters.get((name, labels), 0)

    def render(self, now_s: float) -> str:
        """Prometheus text of everything; metrics nobody has touched are present as zero."""
        self._forget_silent(now_s)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()

    def _forget_silent(self, now_s: float) -> None:
        """Drop the gauges of silent sources; their sequence stays, for late repeats."""
        for name, source in self._sources.items():
            if now_s - source.heard_s > self._gauge_ttl_s and source.gauges:
                self._sources[name] = source._replace(gauges={})

    def collect(self) -> Iterable[MetricFamily]:
        """One family for each row of the catalogue (prometheus_client's interface)."""
        gauges = self._merged_gauges()
        for row in ROWS:
            if row.kind == "counter":
                yield self._counter(row)
            elif row.kind == "gauge":
                yield _gauge(row, gauges)
            else:
                yield self._histogram(row)

    def _counter(self, row: Metric) -> MetricFamily:
        family = CounterMetricFamily(row.name, row.help, labels=row.labels)
        found = {s[1]: v for s, v in self._counters.items() if s[0] == row.name}
        for labels, value in sorted(found.items()) or ([((), 0)] if not row.labels else []):
            family.add_metric(labels, value)
        return family

    def _histogram(self, row: Metric) -> MetricFamily:
        family = HistogramMetricFamily(row.name, row.help, labels=row.labels)
        found = {s[1]: d for s, d in self._histograms.items() if s[0] == row.name}
        if not found and not row.labels:
            found = {(): empty_distribution(row.buckets)}
        for labels, observed in sorted(found.items()):
            buckets, total = [], 0
            for bound, count in zip((*row.buckets, "+Inf"), observed["buckets"], strict=True):
                total += count
                buckets.append((str(bound), float(total)))
            family.add_metric(labels, buckets, observed["sum"])
        return family

    def _merged_gauges(self) -> dict[Series, float]:
        values: dict[Series, list[float]] = {}
        for name, source in self._sources.items():
            for series, value in source.gauges.items():
                values.setdefault(series, []).append(value)
            if source.gauges:
                values.setdefault((REPLICAS, (name.split(":")[0],)), []).append(1)
        return {
            series: sum(found) / (len(found) if series[0] in MEAN_GAUGES else 1)
            for series, found in values.items()
        }


def _gauge(row: Metric, values: dict[Series, float]) -> MetricFamily:
    family = GaugeMetricFamily(row.name, row.help, labels=row.labels)
    found = {series[1]: value for series, value in values.items() if series[0] == row.name}
    for labels, value in sorted(found.items()):
        family.add_metric(labels, value)
    return family
