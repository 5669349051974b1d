"""Every PromQL expression of rules and dashboard parses and names series that exist."""

from __future__ import annotations

import json

import pytest

from scripts.monitoring import dashboard
from scripts.monitoring.queries import RAY_SERIES
from scripts.monitoring.rules import rules
from tests.k8s.monitoring.promql import catalogue, names_in, problems_of, ray_series

RULES = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules()]
SHOWN = dashboard.expressions(json.loads(dashboard.FILE.read_text()))


@pytest.mark.parametrize(("name", "expr"), RULES)
def test_rule(name: str, expr: str) -> None:
    assert problems_of(expr) == []


@pytest.mark.parametrize("expr", SHOWN)
def test_dashboard(expr: str) -> None:
    assert problems_of(expr) == []


@pytest.mark.parametrize("name", RAY_SERIES)
def test_series_and_labels_are_made_by_the_installed_ray(name: str) -> None:
    assert name in ray_series()
    assert set(RAY_SERIES[name]) <= ray_series()[name]


def test_source_of_ray_is_read() -> None:
    """Nothing found would make every other finding about Ray worthless."""
    assert len(ray_series()) > 100
    assert {"deployment", "application"} <= ray_series()["ray_serve_deployment_queued_queries"]
    assert "ray_serve_deployment_request_counter_total" in ray_series()
    assert "ray_serve_deployment_processing_latency_ms_bucket" in ray_series()


def test_what_is_used() -> None:
    """Alerts and dashboard rest on both: the application's own metrics and Ray's."""
    used = set().union(*(names_in(expr) for _, expr in RULES), *map(names_in, SHOWN))
    assert len(used & set(catalogue())) > 30
    assert set(RAY_SERIES) <= used


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        ("rate(specdist_requests_total[5m]", "does not parse"),
        ("rate(specdist_requests[5m])", "no series specdist_requests"),
        ("specdist_num_requests_runing", "no series specdist_num_requests_runing"),
        ("specdist_requests_total{reason='x'}", "specdist_requests_total has no label reason"),
        ("sum by (outcome) (specdist_replicas)", "grouped by outcome"),
        ("a:b:c > 1", "no series a:b:c"),
        ("ray_serve_replicas", "no series ray_serve_replicas"),
        ("ray_serve_deployment_replica_healthy{app='x'}", "has no label app"),
        ("autoscaler_pending_nodes{group='x'}", "has no label group"),
        ("sum(autoscaler_waiting_nodes)", "no series autoscaler_waiting_nodes"),
    ],
)
def test_mistakes_are_found(expr: str, problem: str) -> None:
    assert any(problem in found for found in problems_of(expr))
