"""How many requests one router replica keeps in flight before it refuses more.

Refusing early, with a hint when to come back, is better than a queue that only grows.
Used by ``specdist.router.pipeline``; time is an argument.
"""

from __future__ import annotations

from specdist.errors import OverloadedError

MIN_RETRY_S = 1.0
MAX_RETRY_S = 30.0
SMOOTHING = 0.1  # weight of the newest request in the mean


class Admission:
    """Counts requests in flight and remembers how long they take."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._num_in_flight = 0
        self._mean_s: float | None = None

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    def enter(self) -> None:
        """Take a place; raises OverloadedError when there is none."""
        if self._num_in_flight >= self._max_in_flight:
            raise OverloadedError(
                f"{self._num_in_flight} requests are in flight and max_waiting_requests is "
                f"{self._max_in_flight}",
                code="queue_full",
                retry_after_s=self.retry_after_s(),
            )
        self._num_in_flight += 1

    def leave(self, took_s: float) -> None:
        """Give the place back."""
        self._num_in_flight -= 1
        if self._mean_s is None:
            self._mean_s = took_s
        self._mean_s += SMOOTHING * (took_s - self._mean_s)

    def retry_after_s(self) -> float:
        """About when the next place comes free: one request's time over the places."""
        mean_s = self._mean_s if self._mean_s is not None else MIN_RETRY_S
        return min(MAX_RETRY_S, max(MIN_RETRY_S, mean_s / self._max_in_flight))
