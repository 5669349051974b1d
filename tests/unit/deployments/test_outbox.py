"""The outbox: order, take-over, idle end, nothing lost between two readers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from deployments.outbox import Outbox
from tests.unit.router.fakes import run


async def take(outbox: Outbox[int], key: str, needed: Any = lambda: False) -> list[int]:
    return [item async for item in outbox.read(key, 5.0, needed)]


def test_messages_come_in_order_and_the_idle_reader_ends() -> None:
    async def scenario() -> None:
        outbox: Outbox[int] = Outbox()
        outbox.bind_loop()
        for i in range(3):
            outbox.put("r", i)
        assert await take(outbox, "r") == [0, 1, 2]
        assert asyncio.get_running_loop().time() == 5.0

    run(scenario())


def test_what_comes_between_two_readers_waits_for_the_second() -> None:
    async def scenario() -> None:
        outbox: Outbox[int] = Outbox()
        outbox.bind_loop()
        outbox.put("r", 1)
        assert await take(outbox, "r") == [1]
        outbox.put("r", 2)
        assert await take(outbox, "r") == [2]

    run(scenario())


def test_needed_reader_stays_through_silence() -> None:
    async def scenario() -> None:
        outbox: Outbox[int] = Outbox()
        outbox.bind_loop()
        loop = asyncio.get_running_loop()
        loop.call_later(60, outbox.put, "r", 7)
        assert await take(outbox, "r", lambda: loop.time() < 61) == [7]

    run(scenario())


def test_second_reader_takes_over() -> None:
    async def scenario() -> None:
        outbox: Outbox[int] = Outbox()
        outbox.bind_loop()
        first = asyncio.ensure_future(take(outbox, "r", lambda: True))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(take(outbox, "r"))
        await asyncio.sleep(1)
        outbox.put("r", 3)
        assert await first == []
        assert await second == [3]

    run(scenario())


def test_unread_messages_are_bounded_and_can_be_dropped() -> None:
    async def scenario() -> None:
        outbox: Outbox[int] = Outbox(max_waiting=2)
        outbox.bind_loop()
        for i in range(4):
            outbox.put("r", i)
        assert await take(outbox, "r") == [2, 3]
        outbox.put("r", 9)
        await asyncio.sleep(0)
        outbox.discard("r")
        assert await take(outbox, "r") == []

    run(scenario())


def test_other_threads_may_put() -> None:
    async def scenario() -> list[int]:
        outbox: Outbox[int] = Outbox()
        outbox.bind_loop()
        thread = threading.Thread(target=lambda: [outbox.put("r", i) for i in range(100)])
        thread.start()
        thread.join()
        return [item async for item in outbox.read("r", 0.05, lambda: False)]

    assert asyncio.run(scenario()) == list(range(100))
