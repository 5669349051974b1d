"""How long a target step waits for candidates that are on their way: never beyond their worth.

Waiting ``w`` seconds costs ``w`` times the rate at which the batch decides tokens without
them; it gains the tokens that the missing candidates are expected to save. With
``draft_ahead`` off (the synchronous loop) the step waits for every session whose draft
answers, up to ``max_wait_s``. A draft that lets the target wait in vain twice is no longer
waited for until it is heard of again. Used by the target worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from specdist.config import SpeculationConfig
from specdist.workers.step_loop import Mailbox
from specdist.workers.target_session import TargetSession

SMOOTHING = 0.2


class CandidateWait:
    """Decides, before each step, whether and how long to wait."""

    def __init__(self, speculation: SpeculationConfig) -> None:
        self.speculation = speculation
        self._step_s = 0.0  # running mean of a step's time
        self._tokens_per_s = 0.0

    def reconfigure(self, speculation: SpeculationConfig) -> None:
        """Use new settings from the next step on."""
        self.speculation = speculation

    def observe_step(self, step_s: float, num_decodes: int) -> None:
        """Learn what a step costs; steps without decoding teach nothing."""
        if not num_decodes:
            return
        weight = SMOOTHING if self._step_s else 1.0
        self._step_s += weight * (step_s - self._step_s)
        self._tokens_per_s += weight * (num_decodes / max(step_s, 1e-6) - self._tokens_per_s)

    def budget_s(self, sessions: Collection[TargetSession]) -> float:
        """The longest this step may wait for the given sessions' candidates."""
        limit = self.speculation.max_wait_s
        if not self.speculation.draft_ahead:
            return limit
        gain = sum(s.expected_accepted for s in sessions)
        return min(limit, gain / self._tokens_per_s) if self._tokens_per_s else 0.0

    def until_ready(
        self,
        sessions: Collection[TargetSession],
        mailbox: Mailbox[Any],
        take_messages: Callable[[], None],
    ) -> None:
        """Block until the candidates are there or the time that they are worth is over."""
        if self.speculation.mode == "off":
            return
        began = time.monotonic()
        while missing := [s for s in sessions if s.worth_waiting()]:
            left = began + self.budget_s(missing) - time.monotonic()
            if left <= 0 or not mailbox.wait(left):
                for session in missing:
                    session.num_vain_waits += 1
                return
            take_messages()
