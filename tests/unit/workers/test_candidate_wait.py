"""Waiting for candidates takes the time that is told, and no more than they are worth."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from specdist.config import SpeculationConfig
from specdist.workers.candidate_wait import wait_for_candidates
from specdist.workers.step_loop import Mailbox

BUDGET_S = 0.03


class Session:
    """One that misses candidates until they are there."""

    def __init__(self) -> None:
        self.is_missing = True
        self.num_vain = 0

    def worth_waiting(self) -> bool:
        return self.is_missing and not self.num_vain

    def waited_in_vain(self) -> None:
        self.num_vain += 1


def choice(mode: str = "tree") -> Any:
    return SimpleNamespace(
        settings=SpeculationConfig(mode=mode),  # type: ignore[arg-type]
        is_active=lambda session: True,
        wait_budget_s=lambda missing, num_sessions: BUDGET_S,
    )


@pytest.mark.parametrize(("mode", "least_s"), [("off", 0.0), ("tree", BUDGET_S)])
def test_seconds_waited_in_vain(mode: str, least_s: float) -> None:
    session = Session()
    mailbox: Mailbox[Any] = Mailbox()
    began = time.monotonic()
    waited_s = wait_for_candidates([session], choice(mode), mailbox, lambda: None)  # type: ignore
    took_s = time.monotonic() - began
    assert least_s <= waited_s <= took_s
    assert session.num_vain == (mode != "off")
    if mode == "off":
        assert waited_s == 0


def test_candidates_that_are_there_end_the_wait() -> None:
    session = Session()
    mailbox: Mailbox[Any] = Mailbox()
    mailbox.post("offers")

    def take() -> None:
        mailbox.drain()
        session.is_missing = False

    waited_s = wait_for_candidates([session], choice(), mailbox, take)  # type: ignore
    assert waited_s < BUDGET_S
    assert session.num_vain == 0
