"""Looks at a running application as the dashboard would, for a while, without Grafana.

Starts a Prometheus of its own on the component's rules, scrapes, and then asks: is the
application up, does every rule evaluate, does every panel's query give data. Prints a table of
panels and values and, with ``--out``, leaves that and pictures in a folder. Exits with 1 when
something that must hold does not. ``make observe`` runs it; it starts no application.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scripts.monitoring.load import Load
from scripts.monitoring.panels import Panel, Row
from scripts.monitoring.pictures import draw, legend_of, number
from scripts.monitoring.prometheus import LocalPrometheus, PrometheusError, Series
from scripts.monitoring.rows import build_rows

MAX_VALUES = 4  # of one query in the table
MIN_SCRAPES = 8  # in the time over which a rate is taken: some may be late or fail
NUM_STEPS = 120  # of a picture
FULL_S = 600.0  # shorter looks take rates over a shorter time, or half of it would be ramp


@dataclass(frozen=True)
class Seen:
    """What one query of a panel gave: legends with their series, NaN left out."""

    panel: Panel
    expr: str
    values: tuple[tuple[str, Series], ...]

    @property
    def has_data(self) -> bool:
        return bool(self.values)


def fill_in(expr: str, window_s: float) -> str:
    """An expression of the dashboard with Grafana's variables replaced."""
    known = expr.replace("$__rate_interval", f"{max(1, round(window_s))}s")
    known = known.replace("$namespace", ".*")
    if left := re.search(r"\$\w+", known):
        raise ValueError(f"unknown variable {left[0]} in {expr}")
    return known


def look(
    prometheus: LocalPrometheus, rows: Sequence[Row], window_s: float, over_s: float | None = None
) -> Iterator[Seen]:
    """Ask every query of every panel, for now or over the last ``over_s`` seconds."""
    now_s = time.time()
    for row in rows:
        for panel in row.panels:
            for query in panel.queries:
                expr = fill_in(query.expr, window_s)
                if over_s is None:
                    found = prometheus.query(expr)
                else:
                    step_s = max(1.0, over_s / NUM_STEPS)
                    found = prometheus.query_range(expr, now_s - over_s, now_s, step_s)
                yield Seen(panel, query.expr, tuple(_with_data(query.legend, found)))


def _with_data(legend: str, found: Sequence[Series]) -> Iterator[tuple[str, Series]]:
    for labels, points in found:
        kept = [point for point in points if not math.isnan(point[1])]
        if kept:
            yield legend_of(legend, labels), Series(labels, kept)


def troubles(prometheus: LocalPrometheus, seen: Sequence[Seen]) -> list[str]:
    """Whatever must hold and does not. Ray's ports may be shut: not all of them are in use."""
    found = [
        f"target {target['scrapeUrl']} is {target['health']}: {target['lastError']}"
        for target in prometheus.targets()
        if target["labels"]["job"] == "specdist" and target["health"] != "up"
    ]
    for rule in prometheus.rules():
        if rule["health"] != "ok":
            found.append(f"rule {rule['name']} is {rule['health']}: {rule.get('lastError', '')}")
    panels = dict.fromkeys(item.panel for item in seen)
    with_data = {item.panel for item in seen if item.has_data}
    found += [
        f"panel {panel.title!r} has no data"
        for panel in panels
        if panel not in with_data and not panel.may_be_empty
    ]
    return found


def table(rows: Sequence[Row], seen: Sequence[Seen]) -> list[str]:
    """Lines: panel, legend, value."""
    by_panel: dict[Panel, list[Seen]] = {}
    for item in seen:
        by_panel.setdefault(item.panel, []).append(item)
    lines = []
    for row in rows:
        lines.append(f"-- {row.title}")
        for panel in row.panels:
            cells = [
                f"{legend} {number(series.points[-1][1], panel.unit)}"
                for item in by_panel[panel]
                for legend, series in item.values[:MAX_VALUES]
            ]
            lines.append(f"   {panel.title:<52} {'; '.join(cells) or 'no data'}")
    return lines


def firing(prometheus: LocalPrometheus) -> list[str]:
    """Alerts that are pending or firing."""
    return [
        f"alert {rule['name']}: {rule['state']}"
        for rule in prometheus.rules()
        if rule["type"] == "alerting" and rule["state"] != "inactive"
    ]


def observe(options: argparse.Namespace, folder: Path) -> list[str]:
    """The whole look; returns the troubles."""
    rows = build_rows()
    target = options.url.rstrip("/") + "/metrics"
    with ExitStack() as stack:
        window_s = max(MIN_SCRAPES * options.scrape_s, min(60.0, options.seconds / 3))
        window = None if options.seconds >= FULL_S else f"{math.ceil(window_s)}s"
        prometheus = stack.enter_context(LocalPrometheus(folder, target, options.scrape_s, window))
        load = stack.enter_context(Load(options.url, options.streams))
        began_s = time.time()
        time.sleep(options.seconds)
        over_s = time.time() - began_s
        seen = list(look(prometheus, rows, window_s))
        found = troubles(prometheus, seen) + [f"load: {error}" for error in load.errors]
        lines = [*table(rows, seen), *firing(prometheus)]
        if options.streams:
            lines.append(f"{load.num_done} requests were answered meanwhile")
        if options.out is not None:
            series = {s.expr: s.values for s in look(prometheus, rows, window_s, over_s)}
            draw(rows, series, began_s, options.out)
            (options.out / "panels.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.monitoring.observe")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the application")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch")
    parser.add_argument("--scrape-s", type=float, default=2.0, help="seconds between two scrapes")
    parser.add_argument("--streams", type=int, default=0, help="requests to keep in flight")
    parser.add_argument("--out", type=Path, help="folder for the table and the pictures")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m scripts.monitoring.observe``; 1 when something does not hold."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="specdist-observe-") as folder:
        try:
            found = observe(options, Path(folder))
        except PrometheusError as error:
            found = [str(error)]
    for trouble in found:
        print(f"TROUBLE {trouble}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
