"""Several answers at once, their deltas in the order in which they come.

Used by the HTTP routes for requests with several prompts; knows nothing of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield (index of the source, item); the first error ends all of them."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_drain(i, s, queue)) for i, s in enumerate(sources)]
    try:
        num_running = len(tasks)
        while num_running:
            got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                num_running -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(
    index: int,
    source: AsyncGenerator[T, None],
    queue: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((index, item))
    except Exception as error:  # handed over to the one who reads the queue
        await queue.put(error)
    else:
        await queue.put(None)
