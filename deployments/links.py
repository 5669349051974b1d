"""The router's clients over Serve handles and object refs.

Implements ``specdist.router.clients``. Feeds are read as object refs; a bundle of trees
is passed on as a ref and never opened here, a report is opened once for the clients and
passed on as the same ref. ``open`` runs in an empty context: inside a request's context
Serve would give all calls one internal id and cancel them behind the pipeline's back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from deployments.pinning import Address
from deployments.replica import LEASE_S
from specdist.errors import InternalError, OverloadedError, SpecdistError, UnavailableError
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport
from specdist.router.clients import OpenedSession, Ref, ReportItem
from specdist.router.held import spawn

BROADCAST_TIMEOUT_S = 2.0
LOST = (RayActorError, DeploymentUnavailableError, RequestCancelledError, TaskCancelledError)


def as_specdist_error(error: BaseException, who: str) -> SpecdistError:
    """What an error of Ray or Serve means to a client."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, SpecdistError):
        return cause
    if isinstance(cause, BackPressureError):
        return OverloadedError(f"the queue of the {who} is full", retry_after_s=1.0)
    if isinstance(cause, LOST):
        return UnavailableError(f"the {who} replica was lost ({type(cause).__name__})")
    if isinstance(cause, RayServeException):
        return UnavailableError(f"the {who} cannot be reached ({type(cause).__name__})")
    return InternalError(f"the {who} failed: {type(cause).__name__}: {cause}")


class Session:
    """A session that a replica has taken: the rest of its ``open`` stream."""

    def __init__(self, stream: Any, replica_id: str, who: str) -> None:
        self.replica_id = replica_id
        self._stream = stream
        self._who = who

    async def ended(self) -> None:
        """Return when the replica ended the session; raises UnavailableError when lost."""
        try:
            async for _ in self._stream:
                pass
        except Exception as error:
            raise as_specdist_error(error, self._who) from error

    def cancel(self) -> None:
        """Cancel the stream: the replica closes the session if it still lives."""
        self._stream.cancel()


class Link:
    """Calls to the replicas of one deployment."""

    def __init__(self, handle: DeploymentHandle, router_id: str, who: str) -> None:
        self._open = handle.options(method_name="open", stream=True)
        self._handle = handle
        self._router_id = router_id
        self._who = who
        self._addresses: dict[str, Address] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def open(self, request: SessionRequest) -> OpenedSession:
        """Open a session on the less busy of two replicas; waits while there is none."""
        stream = contextvars.Context().run(self._open.remote, request, self._router_id)
        try:
            address: Address = await stream.__anext__()
        except asyncio.CancelledError:
            stream.cancel()
            raise
        except Exception as error:
            raise as_specdist_error(error, self._who) from error
        self._addresses[address.replica_id] = address
        if self._renewing is None:
            self._renewing = spawn(self._renew_leases())
        return Session(stream, address.replica_id, self._who)

    async def close(self, replica_id: str, session_ids: Sequence[str]) -> None:
        """End sessions; a replica that is gone has none."""
        try:
            await self._call(replica_id, "close_sessions", list(session_ids))
        except UnavailableError:
            return

    async def count_alive(self) -> int:
        """How many replicas answer now."""
        return sum(not isinstance(answer, BaseException) for answer in await self._all("ping"))

    async def flush_metrics(self) -> None:
        """Have every replica push what it counted; those that do not answer are left out."""
        with suppress(UnavailableError):  # there is none: what was counted before is known
            await self._all("flush_metrics")

    async def _all(self, method: str) -> list[Any]:
        """What each replica answers, or the error in its place."""
        try:
            answers = contextvars.Context().run(self._handle.broadcast, method)
            found: list[Any] = await answers.results_async(
                timeout_s=BROADCAST_TIMEOUT_S, return_exceptions=True
            )
        except TimeoutError:
            return []
        except Exception as error:
            raise as_specdist_error(error, self._who) from error
        return found

    async def _renew_leases(self) -> None:
        """Tell the replicas again and again that this router lives; drop those that do not."""
        while True:
            await asyncio.sleep(LEASE_S / 6)
            addresses = list(self._addresses.values())
            answers = await asyncio.gather(
                *(self._renew(address) for address in addresses), return_exceptions=True
            )
            for address, answer in zip(addresses, answers, strict=True):
                if isinstance(answer, RayActorError):
                    self._addresses.pop(address.replica_id, None)

    async def _renew(self, address: Address) -> None:
        await address.call("renew", address.replica_id, self._router_id)

    def _address(self, replica_id: str) -> Address:
        address = self._addresses.get(replica_id)
        if address is None:
            raise UnavailableError(f"the {self._who} replica {replica_id!r} is not known here")
        return address

    async def _call(self, replica_id: str, method: str, *arguments: Any) -> None:
        try:
            await self._address(replica_id).call(method, replica_id, *arguments)
        except Exception as error:
            raise as_specdist_error(error, self._who) from error

    async def _refs(self, replica_id: str, *arguments: Any) -> AsyncIterator[Ref]:
        """The items of a replica's ``feed`` as object refs, unopened."""
        address = self._address(replica_id)
        refs = address.stream("feed", replica_id, self._router_id, *arguments)
        try:
            while (ref := await _next_ref(refs)) is not None:
                yield ref
            await refs.completed()
        except Exception as error:
            raise as_specdist_error(error, self._who) from error
        finally:
            ray.cancel(refs)


async def _next_ref(refs: ray.ObjectRefGenerator) -> Ref | None:
    """The next ref of a stream once its value exists, without fetching it; None at the end.

    ``refs.__anext__`` would fetch and unpickle the value only to learn that it is there.
    """
    (ref,) = refs._get_next_ref_n(1)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready(_: BaseException | None) -> None:
        loop.call_soon_threadsafe(_resolve, ready)

    cancel: Callable[[], None] = ref._on_ready(on_ready)
    try:
        await ready
    except asyncio.CancelledError:
        cancel()
        raise
    if refs._stream_exhausted():
        return None
    refs._consume_next_ref_n(1)
    return ref


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class TargetLink(Link):
    """``specdist.router.clients.TargetClient`` over Serve."""

    def __init__(self, handle: DeploymentHandle, router_id: str) -> None:
        super().__init__(handle, router_id, "target")

    async def reports(self, target_id: str) -> AsyncIterator[ReportItem]:
        """Every step report of that replica for this router."""
        async for ref in self._refs(target_id):
            yield ReportItem(ref, await ref)

    async def offer(self, target_id: str, offers: Ref) -> None:
        """Pass candidate trees on; the ref is opened at the target."""
        await self._call(target_id, "offer", offers)


class DraftLink(Link):
    """``specdist.router.clients.DraftClient`` over Serve."""

    def __init__(self, handle: DeploymentHandle, router_id: str) -> None:
        super().__init__(handle, router_id, "draft")

    async def offers(self, draft_id: str, target_id: str) -> AsyncIterator[Ref]:
        """Every bundle of trees for this router's sessions on that target, unopened."""
        async for ref in self._refs(draft_id, target_id):
            yield ref

    async def observe(self, draft_id: str, report: Ref | StepReport) -> None:
        """Pass verdicts on; a ref is opened at the draft."""
        await self._call(draft_id, "observe", report)
