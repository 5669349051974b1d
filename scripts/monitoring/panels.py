"""What a dashboard is made of: rows of panels, each a few queries. Data only.

Filled by ``rows_speculation`` and ``rows_service``, put together by ``rows``, and read by
whatever shows it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """One expression; ``legend`` names its series by their labels, ``{{like_this}}``."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture. ``may_be_empty``: no data is no fault (an event that did not happen)."""

    title: str
    unit: str  # Grafana's names: percentunit, s, bytes, short
    queries: tuple[Query, ...]
    text: str = ""
    limit: float | None = None  # where good turns bad
    may_be_empty: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def panel(
    title: str,
    unit: str,
    *queries: tuple[str, str],
    text: str = "",
    limit: float | None = None,
    may_be_empty: bool = False,
) -> Panel:
    """A panel from pairs of expression and legend."""
    return Panel(title, unit, tuple(Query(*q) for q in queries), text, limit, may_be_empty)
