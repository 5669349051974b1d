"""What the subcommands print: answers on stdout, everything else on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from specdist.errors import SpecdistError

LARGE = 1_000_000  # totals from here on are bytes


def print_json(value: Any) -> None:
    """One JSON document on stdout; records, paths and bytes are turned into plain data."""
    print(json.dumps(value, default=_plain, ensure_ascii=False), flush=True)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return list(value)
    raise TypeError(f"cannot print a {type(value).__name__} as JSON")


def json_is_wanted(arguments: Sequence[str]) -> bool:
    """Whether a failed command was asked for JSON."""
    return "--json" in arguments


def print_error(error: SpecdistError, as_json: bool = False) -> None:
    """One line on stderr, and an error object on stdout when JSON was asked for."""
    line = " ".join(error.message.split())
    print(f"error: {line}", file=sys.stderr)
    if as_json:
        fields = {"message": line, "type": error.error_type, "param": error.param}
        print_json({"error": {**fields, "code": error.code}})


@contextmanager
def terminal_bar(*columns: ProgressColumn) -> Iterator[Progress | None]:
    """Bars on stderr, with these columns behind each; None where there is no terminal."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # the libraries' own bars would tear ours
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    named = (TextColumn("{task.description}"), BarColumn())
    with Progress(*named, *columns, console=console) as bar:
        yield bar


@contextmanager
def progress_bar() -> Iterator[ShowProgress]:
    """A bar on stderr for long work; one line for each phase where there is no terminal."""
    with terminal_bar(TextColumn("{task.fields[amount]}"), TimeRemainingColumn()) as bar:
        yield ShowProgress(bar)


class ShowProgress:
    """A ``specdist.models.progress.Progress`` that draws."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, phase: str, done: int, total: int) -> None:
        begins = phase not in self._tasks
        if self._bar is None:
            if begins:
                print(phase, file=sys.stderr, flush=True)
                self._tasks[phase] = TaskID(0)
            return
        if begins:
            self._tasks[phase] = self._bar.add_task(phase, amount="")
        amount = _amount(done, total)
        self._bar.update(self._tasks[phase], completed=done, total=total or None, amount=amount)


def _amount(done: int, total: int) -> str:
    if total < LARGE:
        return f"{done}/{total}"
    return f"{done / 1e6:.1f}/{total / 1e6:.1f} MB"
