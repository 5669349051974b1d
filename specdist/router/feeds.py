"""One feed per pair of replicas, shared by all requests of this router.

Reports come from each target with sessions of ours: they are read for the clients and
passed on to the drafts concerned. Trees come from each draft for each target and are
passed on unread. So messages per step and pair do not grow with the sessions. The replica
ends a feed that has had no sessions for a while; nothing is lost then, and if a session
has come in the meantime the feed is opened again. Used by ``specdist.router.pipeline``.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from specdist.errors import SpecdistError, UnavailableError
from specdist.protocol.verdict import StepReport
from specdist.router.clients import DraftClient, Ref, ReportItem, TargetClient
from specdist.router.flow import Flow
from specdist.router.held import spawn

logger = logging.getLogger(__name__)

MAX_OFFERS_WAITING = 8  # older trees are superseded by newer ones
MAX_REPORTS_WAITING = 64  # a draft this far behind is dropped


class Sender:
    """Sends messages one after another, so that they arrive in order."""

    def __init__(
        self,
        send: Callable[[Ref], Awaitable[None]],
        on_error: Callable[[SpecdistError], None],
        max_waiting: int,
        drop_oldest: bool,
    ) -> None:
        self._send = send
        self._on_error = on_error
        self._max_waiting = max_waiting
        self._drop_oldest = drop_oldest
        self._waiting: collections.deque[Ref] = collections.deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, message: Ref) -> None:
        """Send when what was put before has arrived."""
        if len(self._waiting) >= self._max_waiting:
            self._waiting.popleft()
            if not self._drop_oldest:
                self._waiting.clear()
                self._on_error(UnavailableError(f"{self._max_waiting} messages are waiting"))
                return
        self._waiting.append(message)
        if self._task is None or self._task.done():
            self._task = spawn(self._drain())

    def stop(self) -> None:
        """Send no more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _drain(self) -> None:
        while self._waiting:
            try:
                await self._send(self._waiting.popleft())
            except SpecdistError as error:
                self._waiting.clear()
                self._on_error(error)


class Feed:
    """A stream that is read while somebody needs it."""

    def __init__(self, read: Callable[[Feed], Coroutine[Any, Any, None]], sender: Sender) -> None:
        self.flows: dict[str, Flow] = {}
        self.sender = sender
        self.task = spawn(read(self))


class Feeds:
    """All feeds of one router."""

    def __init__(self, targets: TargetClient, drafts: DraftClient) -> None:
        self._targets = targets
        self._drafts = drafts
        self._reports: dict[str, Feed] = {}  # by target; its sender offers trees to it
        self._offers: dict[tuple[str, str], Feed] = {}  # by draft and target

    def add_target(self, flow: Flow, target_id: str) -> None:
        """Deliver the verdicts of this target to the flow from now on."""
        feed = self._reports.get(target_id)
        if feed is None:
            sender = Sender(
                lambda offers: self._targets.offer(target_id, offers),
                lambda error: None,  # the report feed tells when a target is lost
                MAX_OFFERS_WAITING,
                drop_oldest=True,
            )
            feed = Feed(lambda feed: self._read_reports(target_id, feed), sender)
            self._reports[target_id] = feed
        feed.flows[flow.session_id] = flow

    def add_draft(self, flow: Flow, draft_id: str, target_id: str) -> None:
        """Pass this draft's trees to the target, and the target's reports to the draft."""
        key = (draft_id, target_id)
        feed = self._offers.get(key)
        if feed is None:
            sender = Sender(
                lambda report: self._drafts.observe(draft_id, report),
                lambda error: self._draft_lost(key),
                MAX_REPORTS_WAITING,
                drop_oldest=False,
            )
            feed = Feed(lambda feed: self._read_offers(key, feed), sender)
            self._offers[key] = feed
        feed.flows[flow.session_id] = flow

    def observe(self, draft_id: str, target_id: str, report: StepReport) -> None:
        """Tell a draft what it missed while it was opened; before any later report."""
        feed = self._offers.get((draft_id, target_id))
        if feed is not None:
            feed.sender.put(report)

    def remove_target(self, flow: Flow, target_id: str) -> None:
        """Deliver no more to this flow."""
        feed = self._reports.get(target_id)
        if feed is not None:
            feed.flows.pop(flow.session_id, None)

    def remove_draft(self, flow: Flow, draft_id: str, target_id: str) -> None:
        """The flow uses this draft no more."""
        feed = self._offers.get((draft_id, target_id))
        if feed is not None:
            feed.flows.pop(flow.session_id, None)

    def close(self) -> None:
        """Stop all feeds."""
        for feed in [*self._reports.values(), *self._offers.values()]:
            feed.sender.stop()
            feed.task.cancel()

    async def _read_reports(self, target_id: str, feed: Feed) -> None:
        error: SpecdistError = UnavailableError(f"the target {target_id!r} was lost")
        try:
            while feed.flows:  # a feed that ended while a session came is opened again
                async for item in self._targets.reports(target_id):
                    self._deliver(target_id, feed, item)
        except SpecdistError as problem:
            error = problem
        _forget(self._reports, target_id, feed)
        for flow in list(feed.flows.values()):
            flow.target_lost(target_id, error)

    def _deliver(self, target_id: str, feed: Feed, item: ReportItem) -> None:
        drafts = set()
        for verdict in item.report.verdicts:
            flow = feed.flows.get(verdict.session_id)
            if flow is None:
                continue
            if flow.session.draft_id is not None:
                drafts.add(flow.session.draft_id)
            flow.verdict(target_id, verdict)
        for draft_id in drafts:
            draft = self._offers.get((draft_id, target_id))
            if draft is not None:
                draft.sender.put(item.ref)

    async def _read_offers(self, key: tuple[str, str], feed: Feed) -> None:
        draft_id, target_id = key
        try:
            while feed.flows:
                async for offers in self._drafts.offers(draft_id, target_id):
                    target = self._reports.get(target_id)
                    if target is not None:
                        target.sender.put(offers)
        except SpecdistError as error:
            logger.info("draft %s: feed lost: %s", draft_id, error)
        self._draft_lost(key)

    def _draft_lost(self, key: tuple[str, str]) -> None:
        feed = self._offers.get(key)
        if feed is None:
            return
        _forget(self._offers, key, feed)
        for flow in list(feed.flows.values()):
            flow.draft_lost(key[0])


def _forget(feeds: dict[Any, Feed], key: Any, feed: Feed) -> None:
    if feeds.get(key) is feed:
        del feeds[key]
    feed.sender.stop()
    if feed.task is not asyncio.current_task():
        feed.task.cancel()
