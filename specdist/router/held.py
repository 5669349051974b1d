"""A session that a replica holds for one request, until it is let go.

Used by ``specdist.router.pipeline`` for targets and drafts alike.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from specdist.errors import SpecdistError
from specdist.router.clients import DraftClient, OpenedSession, TargetClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

WIND_DOWN_S = 2.0  # a replica that should end a session has this long

_running: set[asyncio.Task[Any]] = set()  # the event loop itself holds tasks only weakly


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that belongs to no request: in an empty context."""
    task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


class Held:
    """One open session; ``ended`` is done when the replica ended it or was lost."""

    def __init__(
        self, client: TargetClient | DraftClient, opened: OpenedSession, session_id: str
    ) -> None:
        self.replica_id = opened.replica_id
        self.ended = spawn(opened.ended())
        self._client = client
        self._opened = opened
        self._session_id = session_id

    def error(self) -> BaseException | None:
        """Why the replica was lost; None if it ended the session itself."""
        return self.ended.exception()

    def release(self, ask: bool) -> None:
        """Let go at once; ``ask`` the replica to end the session unless it does so itself."""
        spawn(self._wind_down(ask))

    async def _wind_down(self, ask: bool) -> None:
        try:
            async with asyncio.timeout(WIND_DOWN_S):
                if ask and not self.ended.done():
                    await self._client.close(self.replica_id, [self._session_id])
                await asyncio.wait({self.ended})
        except (SpecdistError, TimeoutError) as error:
            logger.warning("session %s did not close: %r", self._session_id, error)
        if not self.ended.done():
            self._opened.cancel()
            self.ended.cancel()
        elif not self.ended.cancelled():
            self.ended.exception()  # taken: a replica lost now is no news


def withdraw(
    client: TargetClient | DraftClient, opening: asyncio.Task[OpenedSession], session_id: str
) -> None:
    """Give up an open call; a session that it brings all the same is closed."""
    opening.cancel()
    spawn(_close_late(client, opening, session_id))


async def _close_late(
    client: TargetClient | DraftClient, opening: asyncio.Task[OpenedSession], session_id: str
) -> None:
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        Held(client, opening.result(), session_id).release(ask=True)
