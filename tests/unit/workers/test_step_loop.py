"""The engine thread: torch's thread count, health, and mail between two steps."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from specdist.errors import UnavailableError
from specdist.workers.step_loop import EngineWorker


class Counting(EngineWorker):
    """Steps once for every message; can be told to fail or to hang."""

    def __init__(self, num_threads: int | None = 1) -> None:
        super().__init__("counting", num_threads)
        self.seen: list[object] = []
        self.release = threading.Event()

    def step(self) -> bool:
        self._take_messages()
        return False

    def _close(self, session_ids: object) -> None:
        self.seen.append(session_ids)


def wait_until(condition: object, limit_s: float = 10.0) -> None:
    ends = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends
        time.sleep(0.005)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_engine_thread_has_its_own_number_of_torch_threads(num_threads: int) -> None:
    # A process manager gives its workers one thread; OpenMP keeps the number per thread.
    worker = Counting(num_threads)
    before = torch.get_num_threads()
    found: list[int] = []
    torch.set_num_threads(3 - num_threads)
    try:
        worker.start()
        worker._mailbox.post(lambda: found.append(torch.get_num_threads()))
        wait_until(lambda: found)
    finally:
        worker.stop()
        torch.set_num_threads(before)
    assert found == [num_threads]


def test_messages_are_taken_in_order() -> None:
    worker = Counting()
    worker.close(["a"])
    worker.close(["b"])
    worker.start()
    wait_until(lambda: len(worker.seen) == 2)
    worker.stop()
    assert worker.seen == [["a"], ["b"]]


def test_a_dead_thread_is_unhealthy() -> None:
    worker = Counting()

    def fail() -> None:
        raise ValueError("broken on purpose")

    worker.start()
    worker.check_health()
    worker._mailbox.post(fail)
    with pytest.raises(UnavailableError, match="broken on purpose"):
        wait_until(lambda: worker.check_health())


def test_a_hanging_step_is_unhealthy() -> None:
    worker = Counting()
    worker.start()
    worker._mailbox.post(lambda: worker.release.wait(10) and None)
    with pytest.raises(UnavailableError, match="step has been running"):
        wait_until(lambda: worker.check_health(max_step_s=0.05))
    worker.release.set()
    worker.stop()
