"""The pipeline against fake replicas: streams, faults, limits; no real time passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from specdist.config import AppConfig, RouterConfig
from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    SpecdistError,
    UnavailableError,
)
from specdist.metrics.recorder import Recorder
from specdist.protocol.answer import TokenDelta
from specdist.protocol.request import GenerationRequest, SamplingParams, SpeculationParams
from specdist.protocol.verdict import Verdict
from specdist.router.pipeline import Pipeline
from tests.unit.router.fakes import FakeDraft, FakeDrafts, FakeTarget, FakeTargets, run

PROMPT = (7, 8, 9)
REQUEST = GenerationRequest("r1", PROMPT, SamplingParams(max_tokens=20, seed=3))
ANSWER = tuple(n * 10 for n in range(3, 23))


class World:
    """A pipeline with one target and one draft, unless said otherwise."""

    def __init__(self, num_targets: int = 1, num_drafts: int = 1, **router: Any) -> None:
        self.targets = FakeTargets(*(FakeTarget(f"T{i}") for i in range(num_targets)))
        self.drafts = FakeDrafts(*(FakeDraft(f"D{i}") for i in range(num_drafts)))
        self.recorder = Recorder("Router:r")
        config = AppConfig(router=RouterConfig(**router))
        self.pipeline = Pipeline(config, self.targets, self.drafts, self.recorder, 1000)
        self.engine = asyncio.ensure_future(self.targets.run())

    @property
    def target(self) -> FakeTarget:
        return self.targets.replicas["T0"]

    @property
    def draft(self) -> FakeDraft:
        return self.drafts.replicas["D0"]

    def counts(self) -> dict[tuple[str, ...], float]:
        counters = self.recorder.take_delta()["counters"]
        return {(name, *labels): value for (name, labels), value in counters.items()}

    async def settle(self) -> None:
        """Let everything that is on its way arrive."""
        await asyncio.sleep(3)

    def assert_clean(self) -> None:
        for replica in [*self.targets.replicas.values(), *self.drafts.replicas.values()]:
            assert not replica.sessions
        assert self.pipeline.stats() == {"num_requests_running": 0, "num_requests_waiting": 0}


async def collect(deltas: AsyncIterator[TokenDelta]) -> tuple[tuple[int, ...], TokenDelta]:
    tokens: list[int] = []
    delta = None
    async for delta in deltas:
        tokens.extend(delta.token_ids)
    assert delta is not None
    return tuple(tokens), delta


def draft_events(counts: dict[tuple[str, ...], float]) -> dict[str, float]:
    return {k[1]: v for k, v in counts.items() if k[0] == "specdist_draft_sessions"}


def test_streams_every_token_once_and_counts() -> None:
    async def scenario() -> None:
        world = World()
        tokens, last = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER
        assert (last.finish_reason, last.seed, last.lossless) == ("length", 3, True)
        summary = last.summary
        assert summary.num_generated_tokens == 20
        assert 0 < summary.num_accepted_tokens <= summary.num_draft_tokens
        assert summary.num_steps < 20
        assert sum(summary.acceptance_histogram) == summary.num_spec_steps
        assert not world.draft.gaps
        await world.settle()
        world.assert_clean()
        counts = world.counts()
        assert counts["specdist_requests", "length"] == 1
        assert counts["specdist_prompt_tokens",] == 3
        assert counts["specdist_request_drafts", "le_128"] == summary.num_spec_steps
        assert counts["specdist_request_draft_tokens", "le_128"] == summary.num_draft_tokens
        assert counts["specdist_request_accepted_tokens", "le_128"] == summary.num_accepted_tokens
        assert counts["specdist_request_generation_tokens", "le_128"] == 20

    run(scenario())


def test_seed_is_drawn_when_none_is_given() -> None:
    async def scenario() -> None:
        world = World()
        request = replace(REQUEST, sampling=SamplingParams(max_tokens=2))
        seeds = {(await collect(world.pipeline.generate(request)))[1].seed for _ in range(3)}
        assert len(seeds) == 3

    run(scenario())


def test_many_requests_share_one_feed_and_one_message_per_step() -> None:
    async def scenario() -> None:
        world = World()
        answers = await asyncio.gather(
            *(
                collect(world.pipeline.generate(replace(REQUEST, request_id=f"r{i}")))
                for i in range(8)
            )
        )
        assert all(tokens == ANSWER for tokens, _ in answers)
        assert len(world.draft.observed) <= len(world.target.reports) + 8  # catch-ups

    run(scenario())


@pytest.mark.parametrize("num_drafts", [0, 1])
def test_answers_without_a_draft(num_drafts: int) -> None:
    async def scenario() -> None:
        world = World(num_drafts=num_drafts)
        world.drafts.open_gate.clear()  # hangs, or there is none
        tokens, last = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER
        assert last.summary.num_spec_steps == 0
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_speculation_switched_off_opens_no_draft() -> None:
    async def scenario() -> None:
        world = World()
        request = replace(REQUEST, speculation=SpeculationParams(enabled=False))
        tokens, _ = await collect(world.pipeline.generate(request))
        assert tokens == ANSWER
        assert not world.drafts.requests

    run(scenario())


def test_late_draft_catches_up_from_the_committed_tokens() -> None:
    async def scenario() -> None:
        world = World()
        world.drafts.open_gate.clear()
        asyncio.get_running_loop().call_later(0.055, world.drafts.open_gate.set)
        tokens, last = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER
        assert len(world.drafts.requests[0].committed) == 3  # opened from the prompt
        assert world.draft.observed[0].verdicts[0].base_len == 3  # the catch-up came first
        assert not world.draft.gaps
        assert last.summary.num_spec_steps > 0

    run(scenario())


def test_hanging_draft_open_is_tried_anew() -> None:
    async def scenario() -> None:
        world = World()
        world.drafts.open_gate.clear()
        long = replace(REQUEST, sampling=SamplingParams(max_tokens=900, seed=1))
        world.engine.cancel()  # a slower target, so that the answer outlasts the timeout

        async def slow() -> None:
            while True:
                await asyncio.sleep(0.5)
                world.target.step()

        steps = asyncio.ensure_future(slow())
        asyncio.get_running_loop().call_later(10.5, world.drafts.open_gate.set)
        _, last = await collect(world.pipeline.generate(long))
        steps.cancel()
        assert len(world.drafts.requests) == 2
        assert len(world.drafts.requests[1].committed) > 20
        assert draft_events(world.counts())["failed"] == 1
        assert last.summary.num_spec_steps > 0

    run(scenario())


def test_lost_draft_costs_speed_only_and_another_takes_over() -> None:
    async def scenario() -> None:
        world = World(num_drafts=2, draft_retry_s=0.05)
        asyncio.get_running_loop().call_later(0.035, world.draft.die)
        request = replace(REQUEST, sampling=SamplingParams(max_tokens=100, seed=1))
        tokens, _ = await collect(world.pipeline.generate(request))
        assert tokens == tuple(n * 10 for n in range(3, 103))
        assert not world.drafts.replicas["D1"].gaps
        assert world.drafts.replicas["D1"].observed
        events = draft_events(world.counts())
        assert (events["attached"], events["lost"]) == (2, 1)
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_draft_that_ends_before_its_client_has_read_all_is_not_lost() -> None:
    async def scenario() -> None:
        world = World(draft_retry_s=0.01)
        async for _ in world.pipeline.generate(REQUEST):
            await asyncio.sleep(0.5)
        assert draft_events(world.counts()) == {"attached": 1}
        assert len(world.drafts.requests) == 1
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_draft_feed_that_breaks_alone_counts_as_lost() -> None:
    async def scenario() -> None:
        world = World(draft_retry_s=0.05)
        broken = UnavailableError("feed broke")
        asyncio.get_running_loop().call_later(
            0.035, lambda: world.draft.feed("T0").put_nowait(broken)
        )
        request = replace(REQUEST, sampling=SamplingParams(max_tokens=100, seed=1))
        tokens, _ = await collect(world.pipeline.generate(request))
        assert tokens == tuple(n * 10 for n in range(3, 103))
        assert len(world.drafts.requests) == 2
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_draft_that_refuses_the_request_is_not_asked_again() -> None:
    async def scenario() -> None:
        world = World(draft_retry_s=0.01)
        world.drafts.open_error = InvalidRequestError("too long for the draft")
        tokens, _ = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER
        assert draft_events(world.counts()) == {"refused": 1}

    run(scenario())


def test_full_draft_only_turns_speculation_off() -> None:
    async def scenario() -> None:
        world = World(draft_retry_s=0.05)
        world.drafts.open_error = OverloadedError("full")
        tokens, _ = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER
        assert draft_events(world.counts())["failed"] >= 2

    run(scenario())


def test_draft_that_falls_too_far_behind_is_dropped() -> None:
    async def scenario() -> None:
        world = World(draft_retry_s=100.0)

        async def never(_: Any) -> None:
            await asyncio.Event().wait()

        world.draft.on_observe = never
        request = replace(REQUEST, sampling=SamplingParams(max_tokens=200, seed=1))
        tokens, _ = await collect(world.pipeline.generate(request))
        assert len(tokens) == 200
        assert draft_events(world.counts())["lost"] == 1

    run(scenario())


def test_lost_target_ends_the_stream_with_unavailable() -> None:
    async def scenario() -> None:
        world = World()
        asyncio.get_running_loop().call_later(0.045, world.target.die)
        tokens: list[int] = []
        with pytest.raises(UnavailableError, match="T0 was lost"):
            async for delta in world.pipeline.generate(REQUEST):
                tokens.extend(delta.token_ids)
        assert tokens and tuple(tokens) == ANSWER[: len(tokens)]
        await world.settle()
        world.assert_clean()
        counts = world.counts()
        assert counts["specdist_requests", "unavailable"] == 1
        assert counts["specdist_target_sessions_lost",] == 1

    run(scenario())


def test_feed_that_the_target_ends_is_opened_again() -> None:
    async def scenario() -> None:
        world = World()
        asyncio.get_running_loop().call_later(
            0.035, lambda: world.target.feed("reports").put_nowait(None)
        )
        tokens, _ = await collect(world.pipeline.generate(REQUEST))
        assert tokens == ANSWER

    run(scenario())


def test_duplicate_and_late_reports_are_ignored() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        first = await anext(stream)
        world.target.report(*world.target.reports[0].verdicts)
        tokens, _ = await collect(stream)
        assert first.token_ids + tokens == ANSWER
        assert world.counts()["specdist_late_verdicts",] == 1

    run(scenario())


def test_gap_in_the_verdicts_is_an_error_not_a_hole_in_the_text() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        await anext(stream)
        (session_id,) = world.target.sessions
        world.engine.cancel()
        world.target.report(Verdict(session_id, 99, (1,), 0, 0))
        with pytest.raises(InternalError, match="99"):
            await collect(stream)
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_error_verdict_raises_in_the_stream() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        await anext(stream)
        (session_id,) = world.target.sessions
        world.target.report(
            Verdict(session_id, 0, (), 0, 0, finish_reason="error", error="NaN in the logits")
        )
        with pytest.raises(InternalError, match="NaN in the logits"):
            await collect(stream)

    run(scenario())


def test_deadline_stops_the_work_even_if_nobody_reads() -> None:
    async def scenario() -> None:
        world = World()
        request = replace(REQUEST, sampling=SamplingParams(max_tokens=900, seed=1), timeout_s=1.0)
        stream = world.pipeline.generate(request)
        await anext(stream)
        await asyncio.sleep(1.1)  # the client is slow
        assert not world.target.sessions and not world.draft.sessions
        with pytest.raises(DeadlineError, match="1 s"):
            await collect(stream)
        assert world.counts()["specdist_requests", "deadline_exceeded"] == 1

    run(scenario())


def test_deadline_while_no_target_takes_the_request() -> None:
    async def scenario() -> None:
        world = World()
        world.targets.open_gate.clear()
        with pytest.raises(DeadlineError):
            await collect(world.pipeline.generate(replace(REQUEST, timeout_s=0.5)))
        assert asyncio.get_running_loop().time() == pytest.approx(0.5)
        await world.settle()
        assert world.targets.num_withdrawn == 1

    run(scenario())


def test_no_target_is_unavailable_after_the_open_timeout() -> None:
    async def scenario() -> None:
        world = World(num_targets=0, open_timeout_s=60.0)
        with pytest.raises(UnavailableError, match="60 s"):
            await collect(world.pipeline.generate(REQUEST))

    run(scenario())


def test_full_target_is_overloaded() -> None:
    async def scenario() -> None:
        world = World()
        world.targets.open_error = OverloadedError("no memory", retry_after_s=2.0)
        with pytest.raises(OverloadedError) as caught:
            await collect(world.pipeline.generate(REQUEST))
        assert caught.value.retry_after_s == 2.0
        world.assert_clean()

    run(scenario())


def test_closing_the_iterator_closes_both_sessions_within_a_step() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.01)
        world.assert_clean()
        assert len(world.target.closed) == 1
        assert world.counts()["specdist_requests", "closed"] == 1

    run(scenario())


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.012, 0.05])
def test_cancelled_task_leaves_nothing_behind(after_s: float) -> None:
    async def scenario() -> None:
        world = World()
        task = asyncio.ensure_future(collect(world.pipeline.generate(REQUEST)))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.02)
        world.assert_clean()

    run(scenario())


def test_session_that_a_withdrawn_open_brings_is_closed() -> None:
    async def scenario() -> None:
        world = World()

        async def stubborn(request: Any) -> Any:
            await asyncio.sleep(0.1)
            return world.target.take(request)

        async def shielded(request: Any) -> Any:
            inner = asyncio.ensure_future(stubborn(request))
            while not inner.done():
                try:
                    await asyncio.shield(inner)
                except asyncio.CancelledError:
                    continue
            return inner.result()

        world.targets.open = shielded  # type: ignore[method-assign]
        with pytest.raises(DeadlineError):
            await collect(world.pipeline.generate(replace(REQUEST, timeout_s=0.05)))
        await world.settle()
        world.assert_clean()

    run(scenario())


def test_silent_replica_is_cancelled_after_the_wind_down() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        await anext(stream)
        world.engine.cancel()
        opened = next(iter(world.target.sessions.values()))[2]

        async def no_answer(*_: Any) -> None:
            await asyncio.Event().wait()

        world.targets.close = no_answer  # type: ignore[method-assign]
        await stream.aclose()
        await world.settle()
        assert opened.cancelled

    run(scenario())


def test_open_stream_that_ends_without_a_last_verdict_is_an_error() -> None:
    async def scenario() -> None:
        world = World()
        stream = world.pipeline.generate(REQUEST)
        await anext(stream)
        world.engine.cancel()
        next(iter(world.target.sessions.values()))[2].finish()
        world.target.sessions.clear()
        with pytest.raises(InternalError, match="last verdict"):
            await collect(stream)

    run(scenario())


def test_refuses_beyond_max_waiting_requests() -> None:
    async def scenario() -> None:
        world = World(max_waiting_requests=2)
        streams = [world.pipeline.generate(REQUEST) for _ in range(3)]
        await anext(streams[0])
        await anext(streams[1])
        with pytest.raises(OverloadedError) as caught:
            await anext(streams[2])
        assert caught.value.retry_after_s is not None
        await streams[0].aclose()
        await collect(world.pipeline.generate(REQUEST))
        await streams[1].aclose()

    run(scenario())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": ()}, "at least 1 token"),
        ({"prompt_token_ids": (1,) * 1000}, "1000 tokens"),
        ({"sampling": SamplingParams(max_tokens=998)}, "between 1 and 997"),
        ({"sampling": SamplingParams(max_tokens=0)}, "between 1 and 997"),
        ({"speculation": SpeculationParams(rule="typical")}, "'typical'"),
        ({"timeout_s": 0.0}, "0 s"),
    ],
)
def test_refuses_what_cannot_be_served(change: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        world = World()
        with pytest.raises(SpecdistError, match=message):
            await collect(world.pipeline.generate(replace(REQUEST, **change)))
        world.assert_clean()

    run(scenario())


def test_default_max_tokens_is_what_the_context_holds() -> None:
    async def scenario() -> None:
        world = World()
        request = GenerationRequest("r", (1,) * 999)
        tokens, last = await collect(world.pipeline.generate(request))
        assert (len(tokens), last.finish_reason) == (1, "length")

    run(scenario())


def test_health_needs_a_target_and_does_without_drafts() -> None:
    async def scenario() -> None:
        world = World(num_drafts=0)
        report = await world.pipeline.health()
        assert (report.ready, report.num_targets, report.num_drafts) == (True, 1, 0)
        assert "plain decoding" in report.message
        world.target.alive = False
        report = await world.pipeline.health()
        assert not report.ready and "no target" in report.message

    run(scenario())
