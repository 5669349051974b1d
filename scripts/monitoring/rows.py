"""All rows of the dashboard, and the metrics that they would have left out.

The order is that of the questions: does speculation pay, what do drafts hit, what do clients
feel, what are the engines doing, is there room, do replicas follow, what goes wrong. Metrics
of the catalogue that no panel shows get one each in a last row, so that none is forgotten.
Used by ``dashboard`` and ``observe``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scripts.monitoring import rows_service, rows_speculation
from scripts.monitoring.panels import Panel, Row, panel
from scripts.monitoring.queries import gauge, mean, rate
from scripts.monitoring.rules import recorded
from specdist.metrics.catalog import ROWS, Metric

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def build_rows() -> tuple[Row, ...]:
    """The whole dashboard."""
    rows = (*rows_speculation.build(), *rows_service.build())
    unshown = unshown_metrics(rows)
    if not unshown:
        return rows
    return (*rows, Row("Everything else", tuple(plain_panel(metric) for metric in unshown)))


def unshown_metrics(rows: Sequence[Row]) -> list[Metric]:
    """Metrics that no panel shows, neither directly nor through a recorded series."""
    names = {n for row in rows for p in row.panels for q in p.queries for n in NAME.findall(q.expr)}
    for name in names & set(recorded()):
        names.update(NAME.findall(recorded()[name]))
    return [m for m in ROWS if not names & {m.name + suffix for suffix in SUFFIXES}]


def plain_panel(metric: Metric) -> Panel:
    """A metric as it is, by all its labels."""
    show = {"counter": rate, "gauge": gauge, "histogram": mean}[metric.kind]
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or metric.name
    expr = show(metric.name, *metric.labels)
    return panel(metric.help, "short", (expr, legend), may_be_empty=True)
