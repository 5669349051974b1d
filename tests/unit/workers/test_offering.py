"""When drafting rests because the target makes no use of it."""

from __future__ import annotations

import pytest

from specdist.config import SpeculationConfig
from specdist.drafters.base import DraftSession, GrowthLimits
from specdist.protocol.request import SamplingParams, SessionRequest
from specdist.protocol.verdict import Verdict
from specdist.speculation.noise import Noise
from specdist.speculation.rules.registry import get_rule
from specdist.speculation.sampling import SamplingState
from specdist.workers.offering import (
    OFFER_EVERY_WHEN_PAUSED,
    UNUSED_BEFORE_PAUSE,
    is_paused,
    is_ready,
    make_offer,
    note_use,
    rest_notice,
)


@pytest.fixture
def session() -> DraftSession:
    params = SamplingParams(max_tokens=99, seed=0, temperature=0)
    request = SessionRequest("s", (5, 6), 2, params, "coupled")
    return DraftSession(
        request=request,
        router_id="r",
        tokens=[5, 6],
        sampling=SamplingState(params),
        noise=Noise(0),
        rule=get_rule("coupled"),
        limits=GrowthLimits.of(SpeculationConfig(mode="tree"), request),
    )


def step(session: DraftSession, num_verified: int) -> None:
    """An offer where the session makes one, and the verdict that follows."""
    if is_ready(session, None):
        make_offer(session)
    note_use(session, Verdict("s", 2, (7,), 0, num_verified))
    session.offered_score = None


def test_offers_that_are_left_alone_pause_drafting(session: DraftSession) -> None:
    session.tree.add(-1, 9, 0.5)
    for _ in range(UNUSED_BEFORE_PAUSE + 1):
        assert not is_paused(session)
        step(session, 0)
    assert is_paused(session)
    step(session, 1)
    assert not is_paused(session)


def test_offers_without_nodes_do_not(session: DraftSession) -> None:
    for _ in range(3 * UNUSED_BEFORE_PAUSE):
        step(session, 0)
    assert not is_paused(session)
    session.tree.add(-1, 9, 0.5)
    assert is_ready(session, None)


def test_drawn_trees_are_late_never_left_alone(session: DraftSession) -> None:
    session.rule = get_rule("rejection")
    session.tree.add(-1, 9, 0.5)
    for _ in range(3 * UNUSED_BEFORE_PAUSE):
        step(session, 0)
        assert not is_paused(session) and rest_notice(session) is None


def test_the_target_hears_once_of_each_pause(session: DraftSession) -> None:
    session.tree.add(-1, 9, 0.5)
    notices = []
    for _ in range(UNUSED_BEFORE_PAUSE + 1 + 2 * OFFER_EVERY_WHEN_PAUSED):
        notices.append(rest_notice(session))
        step(session, 0)
    told = [i for i, notice in enumerate(notices) if notice is not None]
    first = UNUSED_BEFORE_PAUSE + 1
    assert told == [first, first + OFFER_EVERY_WHEN_PAUSED]  # again after the probing offer
    notice = notices[first]
    assert notice is not None and notice.rests and not notice.tokens
