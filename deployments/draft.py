"""One draft replica: the draft worker behind Serve streams.

A plain class; ``deployments.app`` makes the deployment ``Draft`` of it. The worker runs
in its own thread, so nothing here blocks the event loop. Called by ``deployments.links``.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import aclosing
from typing import Any

from deployments.replica import IDLE_S, SessionReplica, as_config, build_in_thread
from specdist.config import AppConfig
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport

MakeWorker = Callable[[AppConfig, str, Callable[[str, str, Offers], None], Recorder], Any]


def make_draft_worker(
    config: AppConfig,
    draft_id: str,
    on_offers: Callable[[str, str, Offers], None],
    recorder: Recorder,
) -> Any:
    """The real worker with its model; imported late because it loads torch."""
    from specdist.models.serving import build_draft_engine, build_grammars
    from specdist.workers.draft_worker import DraftWorker

    def build() -> DraftWorker:
        engine, grammars = build_draft_engine(config), build_grammars(config)
        return DraftWorker(config, draft_id, on_offers, recorder, engine, grammars)

    return build_in_thread(build)


class Draft(SessionReplica):
    """Grows candidate trees for sessions of many routers and targets."""

    def __init__(
        self,
        settings: AppConfig | Mapping[str, Any],
        make_worker: MakeWorker = make_draft_worker,
        replica_id: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__("Draft", replica_id, recorder)
        config = as_config(settings)
        worker = make_worker(config, self.replica_id, self._on_offers, self._recorder)
        self._start(worker, config.speculation)

    def _feed_key(self, request: SessionRequest, router_id: str) -> Hashable:
        return router_id, request.target_id

    def _on_offers(self, router_id: str, target_id: str, offers: Offers) -> None:
        """Called by the worker's thread after every draft step."""
        self._outbox.put((router_id, target_id), offers)

    async def feed(self, replica_id: str, router_id: str, target_id: str) -> AsyncIterator[Offers]:
        """One bundle of trees for each draft step for that router's sessions on that target."""
        self._check_address(replica_id)
        self._wake()
        key = (router_id, target_id)
        needed = functools.partial(self._has_sessions, key)
        async with aclosing(self._outbox.read(key, IDLE_S, needed)) as bundles:
            async for offers in bundles:
                yield offers

    async def observe(self, replica_id: str, report: StepReport) -> None:
        """Verdicts of a target; ``report`` travelled as an object ref."""
        self._check_address(replica_id)
        self._worker.observe(report)
        self._end(v.session_id for v in report.verdicts if v.finish_reason or v.error)
