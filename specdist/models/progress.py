"""How long work tells how far it is: a callable, so that this package draws nothing.

The command line passes a progress bar; a replica that starts passes nothing and the
work is only logged.
"""

from __future__ import annotations

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """Told the phase, how much is done and of how much (0: unknown)."""

    def __call__(self, phase: str, done: int, total: int) -> None: ...


def log_phases(phase: str, done: int, total: int) -> None:
    """The default: one log line when a phase begins."""
    if done == 0:
        logger.info("%s", phase)
