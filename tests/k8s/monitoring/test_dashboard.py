"""The dashboard that is checked in is the one that the catalogue makes, and shows all of it."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from scripts.monitoring import dashboard, queries
from scripts.monitoring.panels import Row, panel
from scripts.monitoring.rows import build_rows, plain_panel, unshown_metrics
from specdist.metrics.catalog import CATALOG, ROWS
from tests.k8s.monitoring.promql import problems_of

DASHBOARD = json.loads(dashboard.FILE.read_text())
PANELS = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
WANTED = (
    *("Acceptance by position", "Acceptance by prompt length", "Speed-up against plain decoding"),
    *("Tree size", "Draft hit rate", "Time to first token", "Time per output token"),
    *("End to end", "Tokens per second, each side", "KV cache in use", "Memory of the replicas"),
    *("Replicas wanted and running (Serve)", "Queue wait", "Requests running and waiting"),
)


def test_file_is_fresh() -> None:
    made = dashboard.dump(dashboard.build())
    assert dashboard.FILE.read_text() == made, "run: make dashboard"


@pytest.mark.parametrize("title", WANTED)
def test_what_an_operator_looks_for_is_there(title: str) -> None:
    assert [p["title"] for p in PANELS].count(title) == 1


def test_every_metric_is_shown() -> None:
    assert unshown_metrics(build_rows()) == []


def test_a_metric_that_no_panel_names_is_not_forgotten() -> None:
    lonely = [Row("Only", (panel("One", "short", (queries.rate("specdist_requests"), "all")),))]
    names = {metric.name for metric in unshown_metrics(lonely)}
    assert names == set(CATALOG) - {"specdist_requests"}


@pytest.mark.parametrize("name", CATALOG)
def test_every_row_of_the_catalogue_makes_a_panel(name: str) -> None:
    (query,) = plain_panel(CATALOG[name]).queries
    assert problems_of(query.expr) == []
    assert all(f"{{{{{label}}}}}" in query.legend for label in CATALOG[name].labels)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: queries.rate("specdist_request"), KeyError),
        (lambda: queries.rate("specdist_replicas"), KeyError),  # a gauge has no rate
        (lambda: queries.gauge("specdist_replicas", "reason"), ValueError),
        (lambda: queries.rate("specdist_requests", reason="stop"), ValueError),
        (lambda: queries.quantile(0.5, "specdist_requests"), KeyError),
        (lambda: queries.recorded("specdist:speedup"), KeyError),
        (lambda: queries.ray("ray_serve_replicas"), KeyError),
        (lambda: queries.ray("autoscaler_pending_nodes", "deployment"), ValueError),
    ],
)
def test_what_does_not_exist_cannot_be_named(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_ids_are_unique_and_panels_do_not_overlap() -> None:
    ids = [p["id"] for p in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for a, b in combinations((p["gridPos"] for p in DASHBOARD["panels"]), 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert a["x"] + a["w"] <= dashboard.WIDTH


def test_queries_ask_the_chosen_prometheus_and_namespace() -> None:
    variables = {v["name"]: v for v in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert "namespace" in variables["namespace"]["query"]
    for item in PANELS:
        letters = [target["refId"] for target in item["targets"]]
        assert len(set(letters)) == len(letters) > 0
        for target in item["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert "$namespace" in target["expr"] or target["expr"].endswith(":slo")


def test_kinds_of_the_catalogue_are_the_ones_that_are_asked_for() -> None:
    assert {metric.kind for metric in ROWS} == {"counter", "gauge", "histogram"}
