"""What the end-to-end tests share: reference answers, polling, metrics, both kinds of client.

Nothing here starts or kills a process; ``conftest.py`` and ``test_kills.py`` do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdist.bench.served import ServedApp
from specdist.client import Chunk, Client
from specdist.errors import SpecdistError

T = TypeVar("T")

MODEL = "smollm2-135m-instruct"
PATIENCE_S = 180.0  # for one call on a machine that does much else
OFF = {"enabled": False}
IDLE_GAUGES = ("specdist_num_requests_running", "specdist_num_requests_waiting")
BLOCKS = "specdist_kv_blocks_used"


class Reference(NamedTuple):
    """A prompt whose greedy answer no near tie can change (smallest logit gap 0.22)."""

    prompt: str
    token_ids: tuple[int, ...]
    max_tokens: int
    is_chat: bool = False

    @property
    def client_prompt(self) -> Any:
        """As ``specdist.client`` takes it."""
        return [{"role": "user", "content": self.prompt}] if self.is_chat else self.prompt


def _numbers(*digits: int) -> tuple[int, ...]:
    """A blank, a digit and a comma for each digit."""
    return tuple(token for digit in digits for token in (216, digit, 28))


REFERENCES = {
    "P-COUNT": Reference(
        "Count from 1 to 10, separated by commas. Output only the numbers.",
        (33, 28, *_numbers(34, 35, 36, 37, 38, 39, 40, 41), 216, 33, 32, 2),
        40,
        is_chat=True,
    ),
    "P-NUMS": Reference("1, 2, 3, 4, 5,", (*_numbers(38, 39, 40, 41), 216, 33, 32, 28), 16),
    "P-HA": Reference("ha ha ha ha ha ha", (421, 88, *(421,) * 14), 16),
    "P-OHM": Reference("Ω Ω Ω Ω Ω Ω Ω Ω", (5664, 119) * 6, 12),
    "P-PARIS": Reference("The capital of France is", (7042, 30, 198, 198, 504, 2988, 314, 42), 8),
}


class Streamed(NamedTuple):
    """One streamed answer, joined."""

    text: str
    token_ids: tuple[int, ...]
    last: Chunk


def join(chunks: Iterator[Chunk]) -> Streamed:
    """Read a stream to its end."""
    gathered = list(chunks)
    text = "".join(c.text for c in gathered)
    return Streamed(text, tuple(t for c in gathered for t in c.token_ids), gathered[-1])


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run all calls at once, each in a thread of its own; results in their order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result() for future in futures]


def wait_for(what: str, holds: Callable[[], T], limit_s: float, pause_s: float = 0.1) -> T:
    """Ask again and again until the answer is true; fails with the last one."""
    ends_at = time.monotonic() + limit_s
    while True:
        answer = holds()
        if answer:
            return answer
        if time.monotonic() > ends_at:
            raise AssertionError(f"{what}: not within {limit_s:g} s, last {answer!r}")
        time.sleep(pause_s)


class Series(NamedTuple):
    """One sample of /metrics."""

    name: str
    labels: dict[str, str]
    value: float


def scrape(app: ServedApp) -> list[Series]:
    """Every sample of /metrics now."""
    families = text_string_to_metric_families(app.get("/metrics", timeout_s=PATIENCE_S))
    return [Series(s.name, dict(s.labels), s.value) for f in families for s in f.samples]


def total(samples: Sequence[Series], name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry these labels; KeyError when there is none."""
    values = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    if not values:
        raise KeyError(f"no sample of {name} with {labels}")
    return sum(values)


def left_over(app: ServedApp) -> dict[str, float]:
    """What is still running or holds memory; empty when the application is idle."""
    samples = scrape(app)
    left = {}
    for name in (*IDLE_GAUGES, BLOCKS):
        for deployment in ("Router", "Draft", "Target"):
            if name == BLOCKS and deployment == "Router":
                continue
            if value := total(samples, name, deployment=deployment):
                left[f"{name} {deployment}"] = value
    return left


def wait_until_idle(app: ServedApp, limit_s: float) -> None:
    """Wait until no request runs and no KV block is held; fails naming what is left."""
    state: dict[str, float] = {}

    def idle() -> bool:
        state.clear()
        state.update(left_over(app))
        return not state

    try:
        wait_for("idle", idle, limit_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; still there: {state}") from None


def post(app: ServedApp, path: str, body: Any) -> httpx.Response:
    """One HTTP call with a JSON body, or with bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return httpx.post(app.http_url + path, content=data, headers=headers, timeout=PATIENCE_S)


def events(response: httpx.Response) -> Iterator[dict[str, Any] | str]:
    """The events of a stream as they come: objects, and "[DONE]"."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            yield text if text == "[DONE]" else json.loads(text)


def is_served(client: Client) -> bool:
    """Whether a short request succeeds now."""
    try:
        return bool(client.generate("1, 2,", max_tokens=2, timeout_s=30).token_ids)
    except SpecdistError:
        return False
