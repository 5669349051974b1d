"""The Grafana dashboard: panels -> JSON, checked in under k8s/components/monitoring.

``make dashboard`` writes it anew; a test fails while the file is not what this makes. Knows
Grafana's format, not what the panels mean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from scripts.monitoring.panels import Panel, Row
from scripts.monitoring.rows import build_rows
from scripts.monitoring.rules import COMPONENT

FILE = COMPONENT / "dashboards" / "specdist.json"
UID = "specdist"
WIDTH, HEIGHT = 24, 8  # Grafana's grid; of one panel
PER_LINE = 3
SCHEMA_VERSION = 39  # Grafana 10.4 and newer read it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALERTS = 'ALERTS{service="specdist", alertstate="firing", namespace=~"$namespace"}'


def build(rows: Sequence[Row] | None = None) -> dict[str, Any]:
    """The dashboard as plain data."""
    return {
        "uid": UID,
        "title": "specdist: speculative decoding",
        "tags": ["specdist"],
        "description": "Made from the metric catalogue by `make dashboard`; do not edit by hand.",
        "editable": True,
        "graphTooltip": 1,  # one crosshair over all panels
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_alert_marks()]},
        "templating": {"list": _variables()},
        "panels": _place(build_rows() if rows is None else rows),
    }


def dump(dashboard: dict[str, Any]) -> str:
    """The text of the file."""
    return json.dumps(dashboard, indent=1) + "\n"


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every PromQL expression in it."""
    targets = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    return targets + [a["expr"] for a in dashboard["annotations"]["list"]]


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "namespace",
            "label": "Namespace",
            "type": "query",
            "datasource": DATASOURCE,
            "query": "label_values(specdist_generation_tokens_total, namespace)",
            "refresh": 2,  # when the time range changes
            "sort": 1,
        },
    ]


def _alert_marks() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": ALERTS,
        "iconColor": "red",
        "titleFormat": "{{alertname}}",
        "step": "60s",
    }


def _place(rows: Sequence[Row]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        position = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({"id": len(placed) + 1, **heading, "gridPos": position})
        y += 1
        for i, item in enumerate(row.panels):
            line, column = divmod(i, PER_LINE)
            width = WIDTH // PER_LINE
            grid = {"x": column * width, "y": y + line * HEIGHT, "w": width, "h": HEIGHT}
            placed.append({"id": len(placed) + 1, **_panel(item), "gridPos": grid})
        y += -(-len(row.panels) // PER_LINE) * HEIGHT
    return placed


def _panel(item: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": DATASOURCE,
            "expr": q.expr,
            "legendFormat": q.legend,
        }
        for i, q in enumerate(item.queries)
    ]
    return {
        "type": "timeseries",
        "title": item.title,
        "description": item.text,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(item), "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _defaults(item: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if item.limit is not None:
        steps.append({"color": "red", "value": item.limit})
    return {
        "unit": item.unit,
        "min": 0,
        "custom": {
            "lineWidth": 1,
            "fillOpacity": 5,
            "showPoints": "never",
            "spanNulls": True,
            "thresholdsStyle": {"mode": "off" if item.limit is None else "line"},
        },
        "thresholds": {"mode": "absolute", "steps": steps},
    }


def main() -> int:
    """``python -m scripts.monitoring.dashboard``: write the file."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(dump(build()))
    print(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
