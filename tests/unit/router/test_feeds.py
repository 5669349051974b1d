"""Senders: order, limits, errors."""

from __future__ import annotations

import asyncio
from typing import Any

from specdist.errors import SpecdistError, UnavailableError
from specdist.router.feeds import Sender
from tests.unit.router.fakes import run


class Wire:
    def __init__(self, fail_at: int | None = None) -> None:
        self.got: list[Any] = []
        self.errors: list[SpecdistError] = []
        self.fail_at = fail_at

    async def send(self, message: Any) -> None:
        await asyncio.sleep(1 / (1 + message))  # later messages travel faster
        if message == self.fail_at:
            raise UnavailableError("gone")
        self.got.append(message)


def test_messages_arrive_in_order() -> None:
    async def scenario() -> None:
        wire = Wire()
        sender = Sender(wire.send, wire.errors.append, 10, drop_oldest=False)
        for i in range(5):
            sender.put(i)
        await asyncio.sleep(10)
        assert wire.got == [0, 1, 2, 3, 4]

    run(scenario())


def test_full_sender_drops_the_oldest_where_newer_ones_supersede() -> None:
    async def scenario() -> None:
        wire = Wire()
        sender = Sender(wire.send, wire.errors.append, 2, drop_oldest=True)
        for i in range(5):
            sender.put(i)
        await asyncio.sleep(10)
        assert wire.got == [3, 4] and not wire.errors

    run(scenario())


def test_full_sender_gives_up_where_order_matters() -> None:
    async def scenario() -> None:
        wire = Wire()
        sender = Sender(wire.send, wire.errors.append, 2, drop_oldest=False)
        for i in range(3):
            sender.put(i)
        await asyncio.sleep(10)
        assert wire.got == [] and len(wire.errors) == 1

    run(scenario())


def test_error_drops_what_waits_and_is_told_once() -> None:
    async def scenario() -> None:
        wire = Wire(fail_at=1)
        sender = Sender(wire.send, wire.errors.append, 10, drop_oldest=False)
        for i in range(4):
            sender.put(i)
        await asyncio.sleep(10)
        assert wire.got == [0] and len(wire.errors) == 1

    run(scenario())
