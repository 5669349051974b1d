"""Whether the application would serve a request now: the router's answer to ``/health``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthReport:
    """``ready`` only when a request would be served; drafts are optional for that."""

    ready: bool
    message: str = ""  # why not, or what is degraded
    num_targets: int = 0
    num_drafts: int = 0
