"""What the dashboard's panels look like, without Grafana: one picture for each row.

Draws series that were queried over time; an HTML page shows the pictures one below the
other. Imports matplotlib. Used by ``observe``.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

from scripts.monitoring.panels import Panel, Row
from scripts.monitoring.prometheus import Series

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

PER_LINE = 3
MAX_LEGEND = 12
SCALES = {  # by Grafana's unit: from this value on, divided by this, with this behind it
    "percentunit": ((0, 0.01, " %"),),
    "percent": ((0, 1, " %"),),
    "s": ((1, 1, " s"), (0, 0.001, " ms")),
    "bytes": ((2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (0, 2**10, " KiB")),
    "short": ((0, 1, ""),),
}

Drawn = Mapping[str, Sequence[tuple[str, Series]]]  # by expression: legend and series


def legend_of(template: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend: ``{{label}}`` replaced by its value."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def number(value: float, unit: str) -> str:
    """A value in its unit, in four digits."""
    if not math.isfinite(value):
        return str(value)
    _, scale, suffix = next(s for s in SCALES[unit] if abs(value) >= s[0])
    return f"{value / scale:.4g}{suffix}"


def draw(rows: Sequence[Row], drawn: Drawn, began_s: float, folder: Path) -> list[Path]:
    """One PNG for each row, and index.html."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for row in rows:
        path = folder / f"{re.sub(r'[^a-z]+', '-', row.title.lower()).strip('-')}.png"
        _draw_row(row, drawn, began_s, path)
        written.append(path)
    page = "".join(
        f"<h2>{html.escape(row.title)}</h2><img src='{path.name}' alt=''>"
        for row, path in zip(rows, written, strict=True)
    )
    index = folder / "index.html"
    index.write_text(f"<!doctype html><meta charset='utf-8'><title>specdist</title>{page}\n")
    return [*written, index]


def _draw_row(row: Row, drawn: Drawn, began_s: float, path: Path) -> None:
    num_lines = -(-len(row.panels) // PER_LINE)
    figure, axes = plt.subplots(
        num_lines, PER_LINE, figsize=(5 * PER_LINE, 3.2 * num_lines), squeeze=False
    )
    for place, axis in enumerate(axes.flat):
        if place < len(row.panels):
            _draw_panel(axis, row.panels[place], drawn, began_s)
        else:
            axis.set_axis_off()
    figure.suptitle(row.title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _draw_panel(axis: Axes, item: Panel, drawn: Drawn, began_s: float) -> None:
    num_series = 0
    for query in item.queries:
        for legend, series in drawn.get(query.expr, ()):
            seconds = [when - began_s for when, _ in series.points]
            axis.plot(seconds, [value for _, value in series.points], lw=1.2, label=legend)
            num_series += 1
    axis.set_title(item.title, fontsize=10)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, item.unit)))
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    if not num_series:
        axis.text(0.5, 0.5, "no data", transform=axis.transAxes, ha="center", color="grey")
        return
    axis.set_ylim(bottom=0)
    if item.limit is not None:
        axis.axhline(item.limit, color="tab:red", lw=0.8, ls="--")
    if num_series <= MAX_LEGEND:
        axis.legend(fontsize=7, frameon=False)
