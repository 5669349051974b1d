"""Fake replicas for the router's tests, and an event loop whose clock jumps.

Nothing here sleeps for real: when every task waits, the loop's time moves to the next
timer at once, so timeouts of minutes pass in no time and in the same order every run.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from specdist.errors import SpecdistError, UnavailableError
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport, Verdict
from specdist.router.clients import ReportItem

STEP_S = 0.01


class JumpingLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything runs and jumps to the next timer when nothing does."""

    def __init__(self) -> None:
        super().__init__(_NoWaiting())
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


class _NoWaiting(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


class FakeOpened:
    def __init__(self, replica_id: str) -> None:
        self.replica_id = replica_id
        self.cancelled = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ended(self) -> None:
        await asyncio.shield(self.done)

    def cancel(self) -> None:
        self.cancelled = True

    def finish(self, error: SpecdistError | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class FakeReplica:
    """What fake targets and drafts share: open sessions, feeds that can break."""

    def __init__(self, replica_id: str) -> None:
        self.replica_id = replica_id
        self.sessions: dict[str, tuple[SessionRequest, list[int], FakeOpened]] = {}
        self.closed: list[str] = []
        self.feeds: dict[Any, asyncio.Queue[Any]] = {}
        self.alive = True

    def take(self, request: SessionRequest) -> FakeOpened:
        opened = FakeOpened(self.replica_id)
        self.sessions[request.session_id] = (request, list(request.committed), opened)
        return opened

    def feed(self, key: Any) -> asyncio.Queue[Any]:
        return self.feeds.setdefault(key, asyncio.Queue())

    async def read(self, key: Any) -> AsyncIterator[Any]:
        while True:
            item = await self.feed(key).get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self, session_ids: Sequence[str]) -> None:
        self.closed.extend(session_ids)
        for session_id in session_ids:
            if session_id in self.sessions:
                self.sessions.pop(session_id)[2].finish()

    def die(self) -> None:
        self.alive = False
        error = UnavailableError(f"{self.replica_id} was lost")
        for queue in self.feeds.values():
            queue.put_nowait(error)
        for _, _, opened in self.sessions.values():
            opened.finish(error)
        self.sessions.clear()


class FakeTarget(FakeReplica):
    """Commits token number n as n * 10; accepts every candidate that is right."""

    def __init__(self, replica_id: str = "T0") -> None:
        super().__init__(replica_id)
        self.trees: dict[str, CandidateTree] = {}
        self.reports: list[StepReport] = []

    def step(self) -> None:
        verdicts = [self._decide(session_id) for session_id in list(self.sessions)]
        if verdicts:
            self.report(*verdicts)

    def report(self, *verdicts: Verdict) -> None:
        report = StepReport(self.replica_id, verdicts, STEP_S)
        self.reports.append(report)
        self.feed("reports").put_nowait(report)

    def _decide(self, session_id: str) -> Verdict:
        request, committed, opened = self.sessions[session_id]
        tree = self.trees.pop(session_id, None)
        base = len(committed)
        room = request.num_prompt_tokens + (request.sampling.max_tokens or 0) - base
        num_drafted = len(tree.tokens) if tree is not None and tree.base_len == base else 0
        count = min(num_drafted + 1, room)
        tokens = tuple((base + i) * 10 for i in range(count))
        committed.extend(tokens)
        finish = "length" if count == room else None
        if finish:
            self.sessions.pop(session_id)
            opened.finish()
        return Verdict(
            session_id, base, tokens, min(num_drafted, count), num_drafted, finish_reason=finish
        )


class FakeDraft(FakeReplica):
    """Proposes two right tokens after every report it sees."""

    def __init__(self, replica_id: str = "D0") -> None:
        super().__init__(replica_id)
        self.observed: list[StepReport] = []
        self.gaps: list[Verdict] = []
        self.on_observe: Callable[[StepReport], Coroutine[Any, Any, None]] | None = None

    async def observe(self, report: StepReport) -> None:
        if self.on_observe is not None:
            await self.on_observe(report)
        self.observed.append(report)
        for verdict in report.verdicts:
            if verdict.session_id not in self.sessions:
                continue
            request, committed, opened = self.sessions[verdict.session_id]
            if verdict.base_len != len(committed):
                self.gaps.append(verdict)
            committed.extend(verdict.tokens)
            if verdict.finish_reason:
                self.sessions.pop(verdict.session_id)
                opened.finish()
            else:
                self.propose(request, len(committed))

    def propose(self, request: SessionRequest, base: int) -> None:
        tree = CandidateTree(request.session_id, base, (base * 10, base * 10 + 10), (-1, 0))
        self.feed(request.target_id).put_nowait(Offers(self.replica_id, (tree,)))


class FakeTargets:
    """``TargetClient`` over fake targets; ``open_gate`` holds opens up."""

    def __init__(self, *replicas: FakeTarget) -> None:
        self.replicas = {replica.replica_id: replica for replica in replicas}
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.open_error: SpecdistError | None = None
        self.num_withdrawn = 0
        self._turn = itertools.count()

    def alive(self) -> list[FakeTarget]:
        return [r for r in self.replicas.values() if r.alive]

    async def open(self, request: SessionRequest) -> FakeOpened:
        try:
            await self.open_gate.wait()
        except asyncio.CancelledError:
            self.num_withdrawn += 1
            raise
        if self.open_error is not None:
            raise self.open_error
        if not self.alive():
            await asyncio.Event().wait()
        return self.alive()[next(self._turn) % len(self.alive())].take(request)

    async def reports(self, target_id: str) -> AsyncIterator[ReportItem]:
        async for report in self.replicas[target_id].read("reports"):
            yield ReportItem(("ref", report), report)

    async def offer(self, target_id: str, offers: Any) -> None:
        for tree in offers[1].trees:
            self.replicas[target_id].trees[tree.session_id] = tree

    async def close(self, target_id: str, session_ids: Sequence[str]) -> None:
        self.replicas[target_id].close(session_ids)

    async def count_alive(self) -> int:
        return len(self.alive())

    async def run(self) -> None:
        """Steps of all targets, for ever."""
        while True:
            await asyncio.sleep(STEP_S)
            for replica in self.alive():
                replica.step()


class FakeDrafts:
    """``DraftClient`` over fake drafts."""

    def __init__(self, *replicas: FakeDraft) -> None:
        self.replicas = {replica.replica_id: replica for replica in replicas}
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.open_error: SpecdistError | None = None
        self.requests: list[SessionRequest] = []

    def alive(self) -> list[FakeDraft]:
        return [r for r in self.replicas.values() if r.alive]

    async def open(self, request: SessionRequest) -> FakeOpened:
        self.requests.append(request)
        await self.open_gate.wait()
        if self.open_error is not None:
            raise self.open_error
        if not self.alive():
            await asyncio.Event().wait()
        replica = self.alive()[0]
        opened = replica.take(request)
        replica.propose(request, len(request.committed))
        return opened

    async def offers(self, draft_id: str, target_id: str) -> AsyncIterator[Any]:
        async for offers in self.replicas[draft_id].read(target_id):
            yield ("ref", offers)

    async def observe(self, draft_id: str, report: Any) -> None:
        if not self.replicas[draft_id].alive:
            raise UnavailableError(f"{draft_id} was lost")
        await self.replicas[draft_id].observe(
            report if isinstance(report, StepReport) else report[1]
        )

    async def close(self, draft_id: str, session_ids: Sequence[str]) -> None:
        self.replicas[draft_id].close(session_ids)

    async def count_alive(self) -> int:
        return len(self.alive())
