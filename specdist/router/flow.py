"""One request in flight: its state machine, and the queue that its client reads.

Events come from the feeds, the watchers of its open streams and its deadline timer; each
changes the session first and then wakes the client. Used by ``specdist.router.pipeline``
and ``specdist.router.feeds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from specdist.errors import SpecdistError, UnavailableError
from specdist.protocol.answer import TokenDelta
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import Verdict
from specdist.router.held import Held
from specdist.router.session import Session


class Flow:
    """What ``pipeline`` and ``feeds`` share about one request."""

    def __init__(self, request: SessionRequest, on_failed: Callable[[Flow], None]) -> None:
        self.session = Session(request)
        self.speculate = request.speculate
        self.target: Held | None = None
        self.draft_gone = asyncio.Event()
        self.draft_task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._on_failed = on_failed
        self._queue: asyncio.Queue[TokenDelta | SpecdistError] = asyncio.Queue()

    @property
    def session_id(self) -> str:
        return self.session.session_id

    async def next_delta(self) -> TokenDelta:
        """The next tokens; raises the error that ended the request."""
        item = await self._queue.get()
        if isinstance(item, SpecdistError):
            raise item
        return item

    def verdict(self, target_id: str, verdict: Verdict) -> None:
        """A target decided something for this request."""
        was_over = self.session.is_over
        delta = self.session.verdict(target_id, verdict)
        if delta is not None:
            self._queue.put_nowait(delta)
        elif self.session.error is not None and not was_over:
            self._failed(self.session.error)

    def target_lost(self, target_id: str, error: SpecdistError) -> None:
        """The target is gone.

        The session stands at its committed tokens, ready to be opened elsewhere
        (``session.request_to_open``); until that is built the request fails.
        """
        if self.session.target_lost(target_id):
            self.fail(error)

    def draft_lost(self, draft_id: str) -> None:
        """The draft is gone: plain decoding until another is found."""
        if self.session.draft_lost(draft_id):
            self.draft_gone.set()

    def fail(self, error: SpecdistError) -> None:
        """End the request with an error, unless it is over."""
        if self.session.fail(error):
            self._failed(error)

    def cancel(self) -> None:
        """The client has gone."""
        self.session.fail(UnavailableError("the request was cancelled"))

    def _failed(self, error: SpecdistError) -> None:
        self._queue.put_nowait(error)
        self._on_failed(self)
