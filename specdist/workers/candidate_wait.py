"""How long a target step waits for candidates that are on their way: never beyond their worth.

With ``draft_ahead`` off (the synchronous loop) the step waits for every session whose draft
answers, up to ``max_wait_s``; otherwise no longer than the break-even of the cost model. A
draft that lets the target wait in vain twice is waited for again only after a while, or once
its candidates were in time by themselves.
Used by the target worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from specdist.workers.choosing import CandidateChoice
from specdist.workers.step_loop import Mailbox
from specdist.workers.target_session import TargetSession


def wait_for_candidates(
    sessions: Collection[TargetSession],
    choice: CandidateChoice,
    mailbox: Mailbox[Any],
    take_messages: Callable[[], None],
) -> float:
    """Block until candidates are there or the time they are worth is over; the seconds it took."""
    if choice.settings.mode == "off":
        return 0.0
    began = time.monotonic()
    while missing := [s for s in sessions if s.worth_waiting() and choice.is_active(s)]:
        budget_s = choice.wait_budget_s(missing, len(sessions))
        left_s = began + budget_s - time.monotonic()
        if left_s <= 0 or not mailbox.wait(left_s):
            for session in missing:
                session.waited_in_vain()
            break
        take_messages()
    return time.monotonic() - began
