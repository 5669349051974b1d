"""The one thread in which a replica's model runs, and the mailbox through which others reach it.

Torch never runs on an event loop: every call from outside is posted to the mailbox and
taken up between two engine steps. Used by both workers; knows neither models nor Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from specdist.engine.loader import use_threads
from specdist.errors import UnavailableError

logger = logging.getLogger(__name__)
M = TypeVar("M")


class Mailbox(Generic[M]):
    """Messages from many threads to the engine thread, in the order of posting."""

    def __init__(self) -> None:
        self._messages: list[M] = []
        self._changed = threading.Condition()

    def post(self, message: M) -> None:
        """Leave a message and wake the engine thread."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def drain(self) -> list[M]:
        """Take all messages."""
        with self._changed:
            messages, self._messages = self._messages, []
        return messages

    def wait(self, timeout_s: float) -> bool:
        """Wait until a message is there; False when the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._messages), timeout_s)

    def wake(self) -> None:
        """Wake a waiting engine thread without a message."""
        with self._changed:
            self._changed.notify_all()


class StepLoop:
    """Calls ``step`` for ever in its own thread; waits for mail when that returns False."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], None],
        step: Callable[[], bool],
        mailbox: Mailbox[Any],
    ) -> None:
        self._begin = begin
        self._step = step
        self._mailbox = mailbox
        self._stopping = threading.Event()
        self._step_began: float | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin stepping."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the step in progress."""
        self._stopping.set()
        self._mailbox.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def check_health(self, max_step_s: float) -> None:
        """Raise UnavailableError when the thread has died or one step takes too long."""
        if self._failure is not None:
            raise UnavailableError(f"the engine thread has died: {self._failure!r}")
        began = self._step_began
        if began is not None and time.monotonic() - began > max_step_s:
            raise UnavailableError(f"an engine step has been running for over {max_step_s:.0f} s")

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopping.is_set():
                self._step_began = time.monotonic()
                worked = self._step()
                self._step_began = None
                if not worked:
                    self._mailbox.wait(timeout_s=1.0)
        except BaseException as error:
            self._failure = error
            logger.exception("the engine thread has died")


class EngineWorker:
    """What target and draft workers share: sessions, and a thread that only mail can reach."""

    def __init__(self, thread_name: str, num_threads: int | None) -> None:
        """``num_threads``: what torch may use for the model; None: all cores."""
        self._num_threads = num_threads
        self._sessions: dict[str, Any] = {}
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self._loop = StepLoop(thread_name, self._begin, self.step, self._mailbox)

    def step(self) -> bool:
        """One step over all sessions, on the engine thread; False when there is nothing to do."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Called once on the engine thread, before the first step."""
        use_threads(self._num_threads)

    def _close(self, session_ids: Sequence[str]) -> None:
        """End sessions, on the engine thread; unknown ids are ignored."""
        raise NotImplementedError

    def close(self, session_ids: Sequence[str]) -> None:
        """End sessions; unknown ids are ignored. Any thread, like all that follow."""
        self._mailbox.post(lambda: self._close(session_ids))

    def is_open(self, session_id: str) -> bool:
        """Whether the session is known here."""
        return session_id in self._sessions

    def start(self) -> None:
        """Start the engine thread."""
        self._loop.start()

    def stop(self) -> None:
        """Stop the engine thread."""
        self._loop.stop()

    def check_health(self, max_step_s: float = 120.0) -> None:
        """Raise when the engine thread has died or hangs."""
        self._loop.check_health(max_step_s)

    def _take_messages(self) -> None:
        for message in self._mailbox.drain():
            message()
