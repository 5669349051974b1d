"""Target and Draft as plain classes around a scripted worker; no cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from deployments.draft import Draft
from deployments.replica import ENDED, LEASE_S
from deployments.target import Target
from specdist.config import SpeculationConfig
from specdist.errors import ConfigError, OverloadedError, UnavailableError
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.protocol.request import SamplingParams, SessionRequest, StructuredOutput
from specdist.protocol.verdict import StepReport, Verdict
from tests.unit.router.fakes import run

REQUEST = SessionRequest(
    "s1", (1, 2), 2, SamplingParams(max_tokens=5, seed=1), "coupled", target_id="T"
)


class Worker:
    """Remembers what it was told; ``tell`` is the callback to the replica."""

    def __init__(self, config: Any, replica_id: str, tell: Any, recorder: Recorder) -> None:
        self.tell = tell
        self.opened: list[tuple[str, str]] = []
        self.closed: list[str] = []
        self.constraints: list[Any] = []
        self.got: list[Any] = []
        self.error: Exception | None = None
        self.speculation: SpeculationConfig | None = None

    def prepare(self, request: SessionRequest) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"grammar of {request.session_id}"

    def open(self, request: SessionRequest, router_id: str, constraint: Any) -> None:
        if self.error is not None:
            raise self.error
        self.opened.append((request.session_id, router_id))
        self.constraints.append(constraint)

    def offer(self, offers: Offers) -> None:
        self.got.append(offers)

    observe = offer

    def close(self, session_ids: Sequence[str]) -> None:
        self.closed.extend(session_ids)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check_health(self) -> None:
        if self.error is not None:
            raise self.error

    def reconfigure(self, speculation: SpeculationConfig) -> None:
        self.speculation = speculation

    def stats(self) -> dict[str, float]:
        return {"num_requests_running": 1.0}


def make_target() -> tuple[Target, Worker]:
    target = Target({}, Worker, replica_id="T", recorder=Recorder("Target:T"))
    return target, target._worker


def make_draft() -> tuple[Draft, Worker]:
    draft = Draft({}, Worker, replica_id="D", recorder=Recorder("Draft:D"))
    return draft, draft._worker


async def exhaust(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


def last_report() -> StepReport:
    return StepReport("T", (Verdict("s1", 2, (3,), 0, 0, finish_reason="length"),))


def test_open_stream_lasts_as_long_as_the_session() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        stream = target.open(REQUEST, "R")
        address = await anext(stream)
        assert address.replica_id == "T"
        rest = asyncio.ensure_future(exhaust(stream))
        await asyncio.sleep(1)
        assert not rest.done()
        worker.tell("R", last_report())
        assert await rest == [ENDED]
        reports = [report async for report in target.feed("T", "R")]
        assert reports == [last_report()]  # it waited for its reader

    run(scenario())


def test_a_grammar_is_compiled_off_the_event_loop_before_the_session_opens() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        structured = dataclasses.replace(
            REQUEST.sampling, structured_output=StructuredOutput("regex", "a")
        )
        for request in (REQUEST, dataclasses.replace(REQUEST, sampling=structured)):
            stream = target.open(request, "R")
            await anext(stream)
            await stream.aclose()
        assert worker.constraints == [None, "grammar of s1"]

    run(scenario())


def test_closing_the_open_stream_closes_the_session() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        stream = target.open(REQUEST, "R")
        await anext(stream)
        await stream.aclose()
        assert worker.closed == ["s1"]

    run(scenario())


def test_close_sessions_ends_the_stream_and_ignores_unknown_ids() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        stream = target.open(REQUEST, "R")
        await anext(stream)
        await target.close_sessions("T", ["s1", "unknown"])
        assert await anext(stream) == ENDED
        assert worker.closed[:2] == ["s1", "unknown"]

    run(scenario())


def test_refused_open_raises_before_the_first_item() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        worker.error = OverloadedError("full")
        with pytest.raises(OverloadedError):
            await anext(target.open(REQUEST, "R"))
        assert not target._open_streams

    run(scenario())


def test_messages_for_another_replica_are_refused() -> None:
    async def scenario() -> None:
        target, worker = make_target()
        draft, _ = make_draft()
        offers = Offers("D", ())
        with pytest.raises(UnavailableError, match="'T', not 'X'"):
            await target.offer("X", offers)
        with pytest.raises(UnavailableError):
            await target.close_sessions("X", ["s1"])
        with pytest.raises(UnavailableError):
            await anext(target.feed("X", "R"))
        with pytest.raises(UnavailableError):
            await draft.observe("X", last_report())
        assert not worker.got
        await target.offer("T", offers)
        assert worker.got == [offers]

    run(scenario())


def test_draft_feeds_are_apart_for_each_target() -> None:
    async def scenario() -> None:
        draft, worker = make_draft()
        session = draft.open(REQUEST, "R")
        await anext(session)
        offers = Offers("D", (CandidateTree("s1", 2, (9,), (-1,)),))
        worker.tell("R", "T", offers)
        worker.tell("R", "other", Offers("D", ()))
        feed = draft.feed("D", "R", "T")
        assert await anext(feed) == offers
        await draft.observe("D", last_report())
        assert await exhaust(session) == [ENDED]
        assert await exhaust(feed) == []

    run(scenario())


def test_sessions_of_a_lost_router_end_and_those_of_a_living_one_stay() -> None:
    async def scenario(monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr("deployments.replica.time.monotonic", loop.time)
        target, worker = make_target()
        lost, living = (
            target.open(REQUEST, "lost"),
            target.open(SessionRequest("s2", (1,), 1, SamplingParams(), "coupled"), "living"),
        )
        await anext(lost)
        await anext(living)
        for _ in range(8):
            await asyncio.sleep(LEASE_S / 6)
            await target.renew("T", "living")
        assert worker.closed == ["s1"]
        assert await anext(lost) == ENDED

    with pytest.MonkeyPatch.context() as monkeypatch:
        run(scenario(monkeypatch))


def test_user_config_is_checked_strictly() -> None:
    target, worker = make_target()
    target.reconfigure({"speculation": {"mode": "off"}})
    assert worker.speculation is not None and worker.speculation.mode == "off"
    with pytest.raises(ConfigError, match="'speculaton'"):
        target.reconfigure({"speculaton": {}})
    with pytest.raises(ConfigError, match="did you mean"):
        target.reconfigure({"speculation": {"max_tree_node": 3}})
    target.reconfigure(None)


def test_health_is_the_workers() -> None:
    target, worker = make_target()
    target.check_health()
    worker.error = RuntimeError("the engine thread died")
    with pytest.raises(RuntimeError, match="died"):
        target.check_health()
