"""Messages from a worker's thread to the streams that carry them away.

One queue per key (a router, or a router and a target). Used by the Target and Draft
deployments; knows nothing of what the messages say, and nothing of Ray.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Queues that any thread fills and one reader per key empties, in order.

    A message for a key with no reader waits for one, at most ``max_waiting`` of them:
    then the oldest goes. A second reader of a key takes over from the first.
    """

    def __init__(self, max_waiting: int = 4096) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[Hashable, collections.deque[T]] = {}
        self._reader: dict[Hashable, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind_loop(self) -> None:
        """Remember the running event loop; call before the first ``put``."""
        self._loop = asyncio.get_running_loop()

    def put(self, key: Hashable, message: T) -> None:
        """Add a message; from any thread."""
        if self._loop is None:
            raise RuntimeError("bind_loop must be called before put")
        self._loop.call_soon_threadsafe(self._put, key, message)

    def _put(self, key: Hashable, message: T) -> None:
        queue = self._waiting.setdefault(key, collections.deque(maxlen=self._max_waiting))
        queue.append(message)
        if key in self._reader:
            self._reader[key].set()

    def discard(self, key: Hashable) -> None:
        """Forget what waits for a key that nobody will read."""
        if key not in self._reader:
            self._waiting.pop(key, None)

    async def read(
        self, key: Hashable, idle_s: float, is_needed: Callable[[], bool]
    ) -> AsyncGenerator[T, None]:
        """All messages of a key, until another reader takes over or nobody needs them.

        Ends only when nothing waits and ``is_needed`` was false after ``idle_s`` of
        silence; what comes later waits for the next reader.
        """
        previous = self._reader.get(key)
        mine = self._reader[key] = asyncio.Event()
        if previous is not None:
            previous.set()
        mine.set()
        try:
            while self._reader.get(key) is mine:
                try:
                    async with asyncio.timeout(idle_s):
                        await mine.wait()
                except TimeoutError:
                    if not is_needed():
                        return
                    continue
                mine.clear()
                while self._reader.get(key) is mine and self._waiting.get(key):
                    yield self._waiting[key].popleft()
        finally:
            if self._reader.get(key) is mine:
                del self._reader[key]
