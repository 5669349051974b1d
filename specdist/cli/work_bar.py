"""Progress of work that takes hours: a bar with rate and time left, or a log line now and then.

Drawn on stderr. Where there is no terminal a line is printed at the begin and the end of
each phase, with every note, and otherwise every half minute. Used by ``specdist distill``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import Progress, TaskID, TextColumn

from specdist.cli.output import terminal_bar

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def work_bar() -> Iterator[WorkBar]:
    """A bar for each phase."""
    with terminal_bar(TextColumn("{task.fields[state]}")) as bar:
        yield WorkBar(bar)


@dataclass
class _Phase:
    began: float
    done_at_begin: float
    told: float
    task: TaskID
    is_complete: bool = False


class WorkBar:
    """A ``specdist.distill.progress.Progress`` that draws; downloads tell it bytes, no unit."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._phases: dict[str, _Phase] = {}

    def __call__(
        self, phase: str, done: float, total: float, unit: str = "", note: str = ""
    ) -> None:
        now = time.monotonic()
        begins = phase not in self._phases
        if begins:
            task = TaskID(0) if self._bar is None else self._bar.add_task(phase, state="")
            self._phases[phase] = _Phase(now, done, now, task)
        known = self._phases[phase]
        state = describe(done, total, unit, done - known.done_at_begin, now - known.began)
        if self._bar is not None:
            self._bar.update(known.task, completed=done, total=total or None, state=state)
            if note:
                self._bar.console.print(f"{phase}: {note}")
            return
        ends = done >= total and not known.is_complete
        known.is_complete = done >= total
        if note or begins or ends or now - known.told >= SECONDS_BETWEEN_LINES:
            known.told = now
            print(f"{phase}: {state}{'; ' if note else ''}{note}", file=sys.stderr, flush=True)


def describe(done: float, total: float, unit: str, gained: float, seconds: float) -> str:
    """``1200/5000 tokens, 210 tokens/s, 18 s left``."""
    text = f"{done:,.0f}/{total:,.0f} {unit}".rstrip()
    if gained <= 0 or seconds <= 0:
        return text
    rate = gained / seconds
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    each = f"{shown} {unit.split(' ')[0]}".rstrip()
    return f"{text}, {each}/s, {_duration((total - done) / rate)} left"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
