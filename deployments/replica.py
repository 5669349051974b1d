"""What target and draft replicas have in common: sessions as open streams, and addressing.

A session is one ``open`` stream: it holds the slot that autoscaling, draining and
cancellation see. Subclassed by ``deployments.target`` and ``deployments.draft``, plain
classes that tests drive without a cluster.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import ray
from ray import serve

from deployments.gauges import record_stats
from deployments.metrics_hub import MetricsPusher
from deployments.outbox import Outbox
from deployments.pinning import Address, own_address
from specdist.config import AppConfig, SpeculationConfig, from_mapping
from specdist.errors import ConfigError, UnavailableError
from specdist.metrics.recorder import Recorder
from specdist.protocol.request import SessionRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")
ENDED = "ended"  # the last item of an ``open`` stream
IDLE_S = 5.0  # a feed without sessions ends after this
LEASE_S = 30.0  # a router not heard of for this long is dead
FORGET_S = 60.0  # messages for a router that never reads them are dropped after this


class OpenStream(NamedTuple):
    """One session's ``open`` stream."""

    router_id: str
    feed_key: Hashable
    ended: asyncio.Event


class Worker(Protocol):
    """The part of a worker that both kinds share."""

    def prepare(self, request: SessionRequest) -> Any: ...
    def open(self, request: SessionRequest, router_id: str, constraint: Any) -> None: ...
    def close(self, session_ids: Sequence[str]) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def check_health(self) -> None: ...
    def reconfigure(self, speculation: SpeculationConfig) -> None: ...
    def stats(self) -> dict[str, float]: ...


class SessionReplica:
    """Keeps one ``open`` stream for each session of a worker."""

    def __init__(self, role: str, replica_id: str | None, recorder: Recorder | None) -> None:
        self._role = role
        self._address = Address(replica_id, None) if replica_id else own_address()
        self.replica_id = self._address.replica_id
        self._recorder = recorder or Recorder(source=f"{role}:{self.replica_id}")
        self._open_streams: dict[str, OpenStream] = {}
        self._heard_s: dict[str, float] = {}  # when each router was heard of last
        self._reaper: asyncio.Task[None] | None = None
        self._worker: Any = None
        self._outbox: Outbox[Any] = Outbox()
        self._pusher: MetricsPusher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _start(self, worker: Worker, speculation: SpeculationConfig) -> None:
        self._worker = worker
        self._speculation = speculation
        worker.start()
        if ray.is_initialized():
            app_name = serve.get_replica_context().app_name
            self._pusher = MetricsPusher(self._recorder, app_name, self._sample)
            self._pusher.start()

    def _sample(self) -> None:
        """Set the gauges; called by the pusher's thread."""
        record_stats(self._recorder, self._role, self._worker.stats())

    def _wake(self) -> None:
        """Note the event loop; before anything is served."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._outbox.bind_loop()
            self._reaper = self._loop.create_task(self._reap(), context=contextvars.Context())

    async def open(self, request: SessionRequest, router_id: str) -> AsyncIterator[Address | str]:
        """The replica's address as soon as the session is taken, ENDED when it is over.

        Closing the stream closes the session.
        """
        self._wake()
        session_id = request.session_id
        stream = OpenStream(router_id, self._feed_key(request, router_id), asyncio.Event())
        self._heard_s[router_id] = time.monotonic()
        self._open_streams[session_id] = stream
        try:
            constraint = None
            if request.sampling.structured_output is not None:  # its grammar may take long
                constraint = await asyncio.to_thread(self._worker.prepare, request)
            self._worker.open(request, router_id, constraint)
            yield self._address
            await stream.ended.wait()
            yield ENDED
        finally:
            if self._open_streams.get(session_id) is stream:
                del self._open_streams[session_id]
            self._worker.close([session_id])
            asyncio.get_running_loop().call_later(FORGET_S, self._forget_unread, stream.feed_key)

    def _feed_key(self, request: SessionRequest, router_id: str) -> Hashable:
        """Under which key the outbox keeps what this session's router is told."""
        return router_id

    def _has_sessions(self, feed_key: Hashable) -> bool:
        return any(stream.feed_key == feed_key for stream in self._open_streams.values())

    def _forget_unread(self, feed_key: Hashable) -> None:
        """Drop messages that no router has come to read."""
        if not self._has_sessions(feed_key):
            self._outbox.discard(feed_key)

    def _end(self, session_ids: Iterable[str]) -> None:
        for session_id in session_ids:
            stream = self._open_streams.get(session_id)
            if stream is not None:
                stream.ended.set()

    async def renew(self, replica_id: str, router_id: str) -> None:
        """A router tells that it lives; without this its sessions end after LEASE_S."""
        self._check_address(replica_id)
        self._heard_s[router_id] = time.monotonic()

    async def _reap(self) -> None:
        """End the sessions of routers that died: Ray does not cancel what they called."""
        while True:
            await asyncio.sleep(LEASE_S / 6)
            limit_s = time.monotonic() - LEASE_S
            lost = {router for router, heard_s in self._heard_s.items() if heard_s < limit_s}
            orphans = [k for k, v in self._open_streams.items() if v.router_id in lost]
            if orphans:
                logger.warning("%d sessions of lost routers end", len(orphans))
                self._worker.close(orphans)
                self._end(orphans)
            for router_id in lost:
                del self._heard_s[router_id]

    async def close_sessions(self, replica_id: str, session_ids: Sequence[str]) -> None:
        """End these sessions; ids that are unknown here are ignored."""
        self._check_address(replica_id)
        self._worker.close(session_ids)
        self._end(session_ids)

    async def ping(self) -> str:
        """The replica id: proof that this replica answers."""
        self._worker.check_health()
        return self.replica_id

    async def flush_metrics(self) -> None:
        """Push what was counted, now."""
        if self._pusher is not None:
            await asyncio.to_thread(self._pusher.flush)

    def check_health(self) -> None:
        """Called by Serve; raises when the worker's thread died or hangs."""
        self._worker.check_health()

    def reconfigure(self, user_config: Mapping[str, Any] | None) -> None:
        """Called by Serve with ``user_config``: the settings that apply without a restart."""
        values = dict(user_config or {})
        speculation = values.pop("speculation", None)
        if values:
            raise ConfigError(f"unknown key {min(values)!r} in user_config; known: speculation")
        if speculation is not None:
            base = dataclasses.asdict(self._speculation)
            changed = from_mapping(SpeculationConfig, {**base, **speculation}, "speculation")
            self._worker.reconfigure(changed)

    def _check_address(self, replica_id: str) -> None:
        if replica_id != self.replica_id:
            raise UnavailableError(f"this replica is {self.replica_id!r}, not {replica_id!r}")


def build_in_thread(build: Callable[[], T]) -> T:
    """Build a worker in a thread that ends, so that its OpenMP threads end too.

    OpenMP keeps threads for every thread that ever computed. With those of the loading thread
    beside those of the engine's there are more than cores, and libgomp then sleeps at every
    barrier instead of spinning: measured, a step of the demo target takes 78-97 ms, not 52-59.
    """
    with ThreadPoolExecutor(1, "loading") as pool:
        return pool.submit(build).result()


def as_config(settings: AppConfig | Mapping[str, Any]) -> AppConfig:
    """The settings as a checked record."""
    return settings if isinstance(settings, AppConfig) else AppConfig.from_mapping(settings)
