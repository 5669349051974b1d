"""HTTP answers that end as soon as the client does.

``unless_gone`` and ``EventStream`` watch for the disconnect themselves, at the ASGI
level, so that it works the same under uvicorn and Ray Serve. Knows no endpoint. Used by
``specdist.api.openai``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


def dump(value: Any) -> bytes:
    """Compact JSON; not-a-number is an error, never written."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Error messages may quote half a surrogate pair that a client sent.
    return text.encode("utf-8", errors="backslashreplace")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; when the client goes away first, cancel it and raise ClientDisconnect."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        gone.result()  # a broken connection is an error of its own
        raise ClientDisconnect
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


class EventStream(Response):
    """Server-sent events; the generator is closed when the client is gone."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        no_buffers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers={**no_buffers, **headers})
        del self.headers["content-length"]  # not known
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client goes away."""
        with suppress(ClientDisconnect):  # nobody is left to tell
            await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(value: Any) -> bytes:
    """One server-sent event with a JSON value."""
    return b"data: " + dump(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
