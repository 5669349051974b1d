"""What the router needs from targets and drafts, as Protocols.

``deployments.links`` implements them over Serve handles and object refs, the tests over
plain objects. A ``Ref`` is a message that the router passes on without opening it.
Errors are those of ``specdist.errors``: a replica that is gone or cannot be reached is
an UnavailableError, a full one an OverloadedError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport

Ref: TypeAlias = Any


class ReportItem(NamedTuple):
    """One step report, and the ref under which a draft can be told of it."""

    ref: Ref
    report: StepReport


class OpenedSession(Protocol):
    """A session that a replica has taken."""

    @property
    def replica_id(self) -> str:
        """The replica that took it."""

    async def ended(self) -> None:
        """Return when the replica ended the session, raise when the replica was lost."""

    def cancel(self) -> None:
        """Give the session up without asking: for a replica that does not answer."""


class TargetClient(Protocol):
    """Target replicas, seen from one router."""

    async def open(self, request: SessionRequest) -> OpenedSession:
        """Open a session on some replica; cancelling the call withdraws it."""

    def reports(self, target_id: str) -> AsyncIterator[ReportItem]:
        """Every step report of that replica that concerns this router.

        The replica ends it when this router has had no session there for a while.
        """

    async def offer(self, target_id: str, offers: Ref) -> None:
        """Pass candidate trees on."""

    async def close(self, target_id: str, session_ids: Sequence[str]) -> None:
        """End sessions and free their memory; unknown ids are ignored."""

    async def count_alive(self) -> int:
        """How many replicas answer now."""


class DraftClient(Protocol):
    """Draft replicas, seen from one router."""

    async def open(self, request: SessionRequest) -> OpenedSession:
        """Open a session on some replica; waits while there is none."""

    def offers(self, draft_id: str, target_id: str) -> AsyncIterator[Ref]:
        """Every bundle of trees of that draft for this router's sessions on that target."""

    async def observe(self, draft_id: str, report: Ref | StepReport) -> None:
        """Pass verdicts on."""

    async def close(self, draft_id: str, session_ids: Sequence[str]) -> None:
        """End sessions and free their memory; unknown ids are ignored."""

    async def count_alive(self) -> int:
        """How many replicas answer now."""
