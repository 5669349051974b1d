"""Replicas that die in the middle of an answer: kill -9, on an application of its own.

The draft and the target take turns here (``draft_ahead`` off and patience), so that every
answer has candidates as long as there is a draft.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from specdist.bench.served import ServedApp
from specdist.client import Answer, Client
from specdist.errors import UnavailableError
from tests.e2e.rig import (
    MODEL,
    OFF,
    PATIENCE_S,
    Streamed,
    events,
    is_served,
    join,
    wait_for,
    wait_until_idle,
)

TURNS = {"mode": "tree", "draft_ahead": False, "max_wait_s": 2.0}
PROMPT = "Once upon a time"
LENGTH = 64
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.7, "top_p": 0.9, "seed": 11},
}
NOTICED_S = 20.0  # until a client hears that its target is gone
TAKEN_UP_S = 20.0  # until a new draft's candidates are used


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    """An application in which replicas may be killed."""
    log = tmp_path_factory.mktemp("doomed") / "serve.log"
    float32 = {"dtype": "float32"}
    settings = {"speculation": TURNS, "target": float32, "draft": float32}
    with ServedApp(settings, log_path=log) as served:
        wait_for("a draft", lambda: served.health()["num_drafts"], PATIENCE_S)
        yield served


@pytest.fixture(scope="module")
def caller(doomed: ServedApp) -> Iterator[Client]:
    """The gRPC client of that application; what has begun is not tried again."""
    with Client(doomed.grpc_address, timeout_s=PATIENCE_S, max_retries=0) as connected:
        yield connected


def options(law: str) -> dict[str, Any]:
    """A long answer by one of the laws."""
    return {"max_tokens": LENGTH, "ignore_eos": True, **LAWS[law]}


def speculates(client: Client) -> Answer | None:
    """A greedy answer if candidates were verified for it."""
    answer = client.generate(PROMPT, **{**options("greedy"), "max_tokens": 12})
    return answer if answer.speculation.num_draft_tokens else None


def read_after(chunks: Iterator[Any], number: int, then: Callable[[], object]) -> Iterator[Any]:
    """The same stream; calls ``then`` once after so many chunks."""
    yield from itertools.islice(chunks, number)
    then()
    yield from chunks


def test_lost_draft(doomed: ServedApp, caller: Client) -> None:
    plain = {law: caller.generate(PROMPT, **options(law), speculation=OFF) for law in LAWS}
    wait_for("speculation", lambda: speculates(caller), PATIENCE_S)
    before = doomed.metric("specdist_draft_sessions_total", event="lost")

    def stream(law: str, kill: bool) -> Streamed:
        chunks: Iterator[Any] = caller.stream(PROMPT, **options(law))
        if kill:
            chunks = read_after(chunks, 6, lambda: doomed.kill("Draft"))
        return join(chunks)

    with ThreadPoolExecutor(2) as pool:
        other: Future[Streamed] = pool.submit(stream, "sampled", False)
        streamed = {"greedy": stream("greedy", True), "sampled": other.result()}
    for law, answer in streamed.items():
        assert answer.token_ids == plain[law].token_ids
        assert answer.text == plain[law].text
        assert answer.last.speculation is not None
    assert streamed["greedy"].last.speculation.num_draft_tokens > 0
    assert doomed.metric("specdist_draft_sessions_total", event="lost") > before


def test_new_draft_is_taken_up(doomed: ServedApp, caller: Client) -> None:
    """Follows ``test_lost_draft``: Serve starts another replica."""
    wait_for("a new draft", lambda: doomed.health()["num_drafts"], PATIENCE_S, pause_s=0.5)
    answer = wait_for("speculation", lambda: speculates(caller), TAKEN_UP_S)
    plain = caller.generate(PROMPT, temperature=0, max_tokens=12, speculation=OFF)
    assert answer is not None and answer.token_ids == plain.token_ids


def test_lost_target(doomed: ServedApp, caller: Client) -> None:
    killed_at: list[float] = []

    def kill() -> None:
        doomed.kill("Target")
        killed_at.append(time.monotonic())

    with ThreadPoolExecutor(1) as pool:
        http = pool.submit(_http_stream_to_its_end, doomed)
        wait_for("the HTTP stream", lambda: _num_running(doomed) == 1, PATIENCE_S)
        chunks = caller.stream(PROMPT, max_tokens=2000, ignore_eos=True, temperature=0)
        with pytest.raises(UnavailableError) as caught:
            join(read_after(chunks, 6, kill))
        assert time.monotonic() - killed_at[0] < NOTICED_S
        received, ended_at = http.result(PATIENCE_S)
    assert "target" in caught.value.message
    assert ended_at - killed_at[0] < NOTICED_S
    assert received[-1]["error"]["type"] == "service_unavailable_error"
    assert all(not choice["finish_reason"] for e in received[:-1] for choice in e["choices"])


def test_service_after_the_target_is_back(doomed: ServedApp, caller: Client) -> None:
    """Follows ``test_lost_target``."""
    wait_for("an answer", lambda: is_served(caller), PATIENCE_S, pause_s=0.5)
    wait_for("speculation", lambda: speculates(caller), PATIENCE_S)
    wait_until_idle(doomed, 15.0)


def _num_running(app: ServedApp) -> float:
    return app.metric("specdist_num_requests_running", deployment="Router")


def _http_stream_to_its_end(app: ServedApp) -> tuple[list[Any], float]:
    """All events of a long stream, and when it ended."""
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }
    url = f"{app.http_url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
        assert response.status_code == 200
        received = list(events(response))
    return received, time.monotonic()
