"""gRPC failures -> the errors of ``specdist.errors``, and when to try again.

Used by both clients; knows no transport beyond status, details and trailing metadata.
"""

from __future__ import annotations

import random
from typing import Any

import grpc

from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    SpecdistError,
    UnavailableError,
)

_KINDS: dict[grpc.StatusCode, type[SpecdistError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
}
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


def to_error(error: Any) -> SpecdistError:
    """The error behind a failed call (a ``grpc.RpcError`` of either client)."""
    code = error.code()
    metadata = {str(k): v for k, v in error.trailing_metadata() or ()}
    retry_after = metadata.get("retry-after-s")
    kind = _KINDS.get(code, InternalError)
    details = error.details() or ""
    return kind(
        details if kind is not InternalError else f"{code.name}: {details}",
        param=metadata.get("error-param"),
        code=metadata.get("error-code"),
        retry_after_s=None if retry_after is None else float(retry_after),
    )


def pause_s(attempt: int, error: SpecdistError) -> float:
    """How long to wait before attempt ``attempt`` + 1: doubling, spread out, bounded."""
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)
    return max(pause, error.retry_after_s or 0.0)


class Attempts:
    """Counts the tries of one call that has not begun to be answered.

    Only UNAVAILABLE is tried again: nothing of the answer has been seen, and the same
    request gives the same law.
    """

    def __init__(self, max_retries: int, ends_at: float | None) -> None:
        self._left = max_retries
        self._ends_at = ends_at
        self._made = 0

    def time_left(self, now: float) -> float | None:
        """Seconds until the deadline of the whole call; None without one."""
        return None if self._ends_at is None else max(0.0, self._ends_at - now)

    def next_pause(self, error: SpecdistError, now: float) -> float:
        """Seconds to wait before trying again; raises the error when there is no use."""
        left_s = self.time_left(now)
        pause = pause_s(self._made, error)
        too_late = left_s is not None and pause >= left_s
        if not isinstance(error, UnavailableError) or not self._left or too_late:
            raise error
        self._left -= 1
        self._made += 1
        return pause
