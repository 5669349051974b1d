"""PromQL from the rows of the metric catalogue: it cannot name what does not exist.

Each function looks its metric up and raises KeyError for an unknown name and ValueError for
a label that the metric does not have. Recorded series are those of the recording rules, Ray's
those of ``RAY_SERIES``, which a test holds against the installed Ray. Used by ``rows``,
``rows_speculation`` and ``rows_service``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scripts.monitoring.rules import recorded as recorded_rules
from specdist.metrics.catalog import Kind, get_metric

NAMESPACE = 'namespace=~"$namespace"'
WINDOW = "$__rate_interval"  # Grafana's: a few scrapes, however far one has zoomed out
FROM_SCRAPING = ("namespace", "ray_io_cluster", "ray_io_group")  # labels that the component adds

_OF_DEPLOYMENT = ("deployment", "application")
RAY_SERIES: dict[str, tuple[str, ...]] = {
    "ray_serve_autoscaling_target_replicas": _OF_DEPLOYMENT,
    "ray_serve_autoscaling_desired_replicas": _OF_DEPLOYMENT,
    "ray_serve_deployment_replica_healthy": _OF_DEPLOYMENT,
    "ray_serve_deployment_queued_queries": (*_OF_DEPLOYMENT, "handle"),
    "ray_serve_num_ongoing_requests_at_replicas": (*_OF_DEPLOYMENT, "handle"),
    "ray_node_gpus_utilization": ("GpuIndex",),
    "ray_node_gram_used": ("GpuIndex",),
    "autoscaler_pending_nodes": ("NodeType",),
    "autoscaler_active_nodes": ("NodeType",),
}


def rate(name: str, *by: str, **where: str) -> str:
    """How fast a counter grows, per second."""
    return _sum(f"rate({_select(name, 'counter', by, where)}[{WINDOW}])", by)


def gauge(name: str, *by: str, **where: str) -> str:
    """A gauge as it stands."""
    return _sum(_select(name, "gauge", by, where), by)


def mean_gauge(name: str, *by: str, **where: str) -> str:
    """A gauge that is a mean over replicas already."""
    return _aggregate("max", _select(name, "gauge", by, where), by)


def seconds_in(name: str, *by: str, **where: str) -> str:
    """The sum of a histogram's observations, per second."""
    return _sum(f"rate({_select(name, 'histogram', by, where, '_sum')}[{WINDOW}])", by)


def mean(name: str, *by: str, **where: str) -> str:
    """The mean of a histogram's observations."""
    count = _sum(f"rate({_select(name, 'histogram', by, where, '_count')}[{WINDOW}])", by)
    return f"{seconds_in(name, *by, **where)} / {count}"


def quantile(q: float, name: str, *by: str, **where: str) -> str:
    """A quantile of a histogram."""
    buckets = f"rate({_select(name, 'histogram', by, where, '_bucket')}[{WINDOW}])"
    return f"histogram_quantile({q}, {_sum(buckets, (*by, 'le'))})"


def recorded(name: str, **where: str) -> str:
    """A series of the recording rules."""
    if name not in recorded_rules():
        raise KeyError(f"no rule records {name!r}; known: {', '.join(sorted(recorded_rules()))}")
    has_namespace = "namespace" in recorded_rules()[name]
    return name + _matchers(where, has_namespace)


def ray(name: str, *by: str, how: str = "sum", **where: str) -> str:
    """One of Ray's series, of this application where it says of which."""
    if name not in RAY_SERIES:
        raise KeyError(f"unknown Ray series {name!r}; known: {', '.join(sorted(RAY_SERIES))}")
    labels = RAY_SERIES[name]
    _check_labels(name, labels, (*by, *where))
    if "application" in labels:
        where = {"application": "specdist", **where}
    return _aggregate(how, name + _matchers(where), by)


def _select(
    name: str, kind: Kind, by: Iterable[str], where: dict[str, str], suffix: str = ""
) -> str:
    metric = get_metric(name, kind)
    _check_labels(name, metric.labels, (*by, *where))
    return name + ("_total" if kind == "counter" else suffix) + _matchers(where)


def _check_labels(name: str, labels: Sequence[str], used: Iterable[str]) -> None:
    known = {*labels, *FROM_SCRAPING}
    if unknown := sorted(set(used) - known):
        raise ValueError(f"{name} has no label {unknown[0]!r}; it has {sorted(known)}")


def _matchers(where: dict[str, str], has_namespace: bool = True) -> str:
    parts = [NAMESPACE] if has_namespace else []
    parts += [f'{label}="{value}"' for label, value in where.items()]
    return "{" + ", ".join(parts) + "}" if parts else ""


def _sum(inner: str, by: Sequence[str]) -> str:
    return _aggregate("sum", inner, by)


def _aggregate(how: str, inner: str, by: Sequence[str]) -> str:
    return f"{how} by ({', '.join(by)}) ({inner})" if by else f"{how}({inner})"
