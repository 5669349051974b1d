"""The latencies of one request, as its client sees them.

Driven by ``specdist.router.pipeline`` with the time as an argument. Definitions: TTFT
from arrival to the first chunk; ITL the gap between chunks; TPOT = (E2E - TTFT) /
(output tokens - 1); E2E from arrival to the last chunk. A chunk may hold several tokens.
"""

from __future__ import annotations

from specdist.metrics.recorder import Recorder

LENGTH_BOUNDS = (128, 512, 2048)  # prompt tokens


def length_bucket(num_prompt_tokens: int) -> str:
    """The bounded label under which a prompt of this length is reported."""
    for bound in LENGTH_BOUNDS:
        if num_prompt_tokens <= bound:
            return f"le_{bound}"
    return f"gt_{LENGTH_BOUNDS[-1]}"


class RequestLatency:
    """Watches the chunks of one answer."""

    def __init__(self, recorder: Recorder, num_prompt_tokens: int, arrived_s: float) -> None:
        self._recorder = recorder
        self._bucket = length_bucket(num_prompt_tokens)
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = arrived_s
        self._num_tokens = 0
        self._is_finished = False

    def opened(self, now_s: float) -> None:
        """A target has taken the request."""
        self._recorder.observe("specdist_request_queue_time_seconds", now_s - self._arrived_s)

    def chunk(self, num_tokens: int, now_s: float) -> None:
        """Tokens reached the client; chunks without tokens count for nothing."""
        if num_tokens == 0:
            return
        if self._first_s is None:
            self._first_s = now_s
            self._observe("time_to_first_token", now_s - self._arrived_s)
        else:
            self._observe("inter_token_latency", now_s - self._last_s)
        self._recorder.observe("specdist_tokens_per_chunk", num_tokens)
        self._last_s = now_s
        self._num_tokens += num_tokens

    def finished(self, now_s: float) -> None:
        """The answer is complete; never called for a request that failed."""
        if self._is_finished or self._first_s is None:
            return
        self._is_finished = True
        self._observe("e2e_request_latency", now_s - self._arrived_s)
        if self._num_tokens > 1:
            per_token = (now_s - self._first_s) / (self._num_tokens - 1)
            self._observe("time_per_output_token", per_token)

    def _observe(self, name: str, value: float) -> None:
        self._recorder.observe(f"specdist_{name}_seconds", value, length_bucket=self._bucket)
