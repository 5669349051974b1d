"""How the phases of a distillation tell how far they are: a callable that draws, or not.

The command line passes a bar; tests and other callers pass nothing.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told the phase, what is done of how much, in which unit, and a note for the log."""

    def __call__(
        self, phase: str, done: float, total: float, unit: str = "", note: str = ""
    ) -> None: ...


def silent(phase: str, done: float, total: float, unit: str = "", note: str = "") -> None:
    """Tells nobody."""
