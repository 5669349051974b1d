"""Which series exist, with which labels, and what a PromQL expression names that does not.

Three sources: the metric catalogue (with Prometheus's suffixes), the recording rules, and the
metrics that the source of the installed Ray makes. Used by the tests beside it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
from ray.autoscaler._private.prom_metrics import AutoscalerPrometheusMetrics

from scripts.monitoring.rules import rules
from specdist.metrics.catalog import ROWS

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
RAY_SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}
RAY_FILES = ("serve/_private", "dashboard/modules/reporter")
RAY_CONSTANTS = "dashboard/consts.py"  # tags that the reporter imports
# From scraping and relabelling (k8s/components/monitoring), and `le` of histograms.
EVERYWHERE = {"namespace", "job", "instance", "ray_io_cluster", "ray_io_group"}
OF_PROMETHEUS = {"up": set(), "ALERTS": {"alertname", "alertstate", "service"}}
GRAFANA = {"$__rate_interval": "1m", "$namespace": "a"}

Labels = dict[str, set[str]]  # by the name of the series


@cache
def catalogue() -> Labels:
    """Every series of the application."""
    found: Labels = {}
    for row in ROWS:
        for suffix in SUFFIXES[row.kind]:
            found[row.name + suffix] = {*row.labels, *({"le"} if suffix == "_bucket" else ())}
    return found


@cache
def recorded() -> Labels:
    """Every recorded series, with the labels that its expression keeps."""
    found: Labels = {}
    for rule in rules():
        if "record" in rule:
            labels = found.setdefault(rule["record"], set())
            labels.update(rule.get("labels", {}))
            for kept in re.findall(r"by \(([^)]*)\)", rule["expr"]):
                labels.update(kept.replace(" ", "").split(","))
            labels.discard("le")
    return found


@cache
def ray_series() -> Labels:
    """Every series that the source of the installed Ray makes."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    found: Labels = {}
    constants = _assigned(ast.parse((root / RAY_CONSTANTS).read_text()))
    for folder in RAY_FILES:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for kind, name, labels in _metrics_made(tree, constants):
                for suffix in RAY_SUFFIXES[kind]:
                    found.setdefault(f"ray_{name}{suffix}", set()).update(labels)
    for family in AutoscalerPrometheusMetrics(session_name="s").registry.collect():
        found[family.name] = {"NodeType", "SessionName"}
    return found


def known() -> Labels:
    """Every series that an expression may name."""
    return {**catalogue(), **recorded(), **ray_series(), **OF_PROMETHEUS}


def problems_of(expr: str) -> list[str]:
    """What is wrong with an expression; Grafana's variables are filled in first."""
    for variable, value in GRAFANA.items():
        expr = expr.replace(variable, value)
    try:
        tree = promql_parser.parse(expr)
    except ValueError as error:
        return [f"does not parse: {error}"]
    return list(_problems(tree))


def names_in(expr: str) -> set[str]:
    """The series that an expression names."""
    for variable, value in GRAFANA.items():
        expr = expr.replace(variable, value)
    return {selector.name for selector in _selectors(promql_parser.parse(expr))}


def _problems(node: Any) -> Iterator[str]:
    series = known()
    for selector in _selectors(node):
        if selector.name not in series:
            yield f"no series {selector.name}"
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in series[selector.name] | EVERYWHERE:
                yield f"{selector.name} has no label {matcher.name}"
    for part in _walk(node):
        modifier = getattr(part, "modifier", None)
        labels = getattr(modifier, "labels", None)
        if labels is None:
            continue
        below = set().union(*(series.get(s.name, set()) for s in _selectors(part)))
        for label in labels:
            if label not in below | EVERYWHERE:
                yield f"grouped by {label}, which nothing there has"


def _selectors(node: Any) -> Iterator[Any]:
    return (part for part in _walk(node) if isinstance(part, promql_parser.VectorSelector))


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for field in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(node, field, None)
        if child is not None:
            yield from _walk(child)
    for child in getattr(node, "args", None) or ():
        yield from _walk(child)


def _metrics_made(
    tree: ast.Module, constants: dict[str, ast.expr]
) -> Iterator[tuple[str, str, set[str]]]:
    """Calls like ``metrics.Gauge("name", ..., tag_keys=...)``: kind, name, tags."""
    values = {**constants, **_assigned(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        kind = ast.unparse(node.func).rpartition(".")[2]
        first = node.args[0]
        if kind in RAY_SUFFIXES and isinstance(first, ast.Constant):
            tags = [k.value for k in node.keywords if k.arg == "tag_keys"] + node.args[3:4]
            labels = {text for tag in tags for text in _strings(tag, values)}
            yield kind, str(first.value), labels


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _strings(node: ast.AST, values: dict[str, ast.expr]) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and part.id in values and values[part.id] is not node:
            yield from _strings(values[part.id], {k: v for k, v in values.items() if k != part.id})
