"""One target replica: the target worker behind Serve streams.

A plain class; ``deployments.app`` makes the deployment ``Target`` of it. The worker runs
in its own thread, so nothing here blocks the event loop. Called by ``deployments.links``.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from deployments.replica import IDLE_S, SessionReplica, as_config, build_in_thread
from specdist.config import AppConfig
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import Offers
from specdist.protocol.verdict import StepReport

MakeWorker = Callable[[AppConfig, str, Callable[[str, StepReport], None], Recorder], Any]


def make_target_worker(
    config: AppConfig,
    target_id: str,
    on_report: Callable[[str, StepReport], None],
    recorder: Recorder,
) -> Any:
    """The real worker with its model; imported late because it loads torch."""
    from specdist.models.serving import build_grammars, build_target_engine
    from specdist.workers.target_worker import TargetWorker

    def build() -> TargetWorker:
        engine, grammars = build_target_engine(config), build_grammars(config)
        return TargetWorker(config, target_id, on_report, recorder, engine, grammars=grammars)

    return build_in_thread(build)


class Target(SessionReplica):
    """Takes sessions from routers and candidates from drafts, reports what it decides."""

    def __init__(
        self,
        settings: AppConfig | Mapping[str, Any],
        make_worker: MakeWorker = make_target_worker,
        replica_id: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__("Target", replica_id, recorder)
        config = as_config(settings)
        worker = make_worker(config, self.replica_id, self._on_report, self._recorder)
        self._start(worker, config.speculation)

    def _on_report(self, router_id: str, report: StepReport) -> None:
        """Called by the worker's thread after every engine step."""
        self._outbox.put(router_id, report)
        over = [v.session_id for v in report.verdicts if v.finish_reason or v.error]
        if over and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, over)

    async def feed(self, replica_id: str, router_id: str) -> AsyncIterator[StepReport]:
        """One report for each engine step that concerns that router."""
        self._check_address(replica_id)
        self._wake()
        needed = functools.partial(self._has_sessions, router_id)
        async with aclosing(self._outbox.read(router_id, IDLE_S, needed)) as reports:
            async for report in reports:
                yield report

    async def offer(self, replica_id: str, offers: Offers) -> None:
        """Candidate trees from a draft; ``offers`` travelled as an object ref."""
        self._check_address(replica_id)
        self._worker.offer(offers)
