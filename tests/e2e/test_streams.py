"""Many streams at once, and clients that leave: right answers, and nothing left behind."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from specdist.bench.served import ServedApp
from specdist.client import Client
from tests.e2e.rig import (
    MODEL,
    OFF,
    PATIENCE_S,
    REFERENCES,
    Streamed,
    join,
    together,
    wait_until_idle,
)

IDLE_S = 10.0
GONE_S = 5.0
NUM_GREEDY = 8
NUM_LEAVING = 50
# One after the other a prompt and how much is asked for: 4 to 46 tokens.
PROMPTS: tuple[Any, ...] = (
    *(r.client_prompt for r in REFERENCES.values()),
    "Once upon a time",
    "def add(a, b):",
    "The quick brown fox jumps over the lazy dog. The quick",
)
STREAMS = [(PROMPTS[i % len(PROMPTS)], 4 + (i * 11) % 43) for i in range(16)]


def greedy(client: Client, prompt: Any, max_tokens: int, **options: Any) -> Streamed:
    """One greedy stream."""
    return join(client.stream(prompt, max_tokens=max_tokens, temperature=0, **options))


def sampled(client: Client, prompt: Any, max_tokens: int, seed: int) -> Streamed:
    """One sampled stream, with penalties of its own."""
    law = {"temperature": 0.5 + 0.1 * (seed % 8), "top_p": 0.9, "frequency_penalty": 0.3}
    return join(client.stream(prompt, max_tokens=max_tokens, seed=seed, **law))


def test_16_streams_of_mixed_lengths(app: ServedApp, client: Client) -> None:
    firsts = STREAMS[:NUM_GREEDY]
    alone = [greedy(client, prompt, length, speculation=OFF) for prompt, length in firsts]
    calls = [partial(greedy, client, prompt, length) for prompt, length in firsts]
    calls += [
        partial(sampled, client, prompt, length, seed)
        for seed, (prompt, length) in enumerate(STREAMS[NUM_GREEDY:])
    ]
    streams = together(calls)
    for solo, stream in zip(alone, streams, strict=False):
        assert (stream.token_ids, stream.text) == (solo.token_ids, solo.text)
    for stream, (_, length) in zip(streams, STREAMS, strict=True):
        usage = stream.last.usage
        assert usage is not None and usage.completion_tokens == len(stream.token_ids)
        whole = len(stream.token_ids) == length
        assert stream.last.finish_reason == ("length" if whole else "stop")
    wait_until_idle(app, IDLE_S)
    assert app.health()["num_targets"] == 1  # a target that finds its pool broken dies


def leave_grpc(client: Client) -> None:
    """Read one chunk of a long answer, then cancel the call."""
    stream = client.stream("ha ha ha ha ha ha", max_tokens=400, ignore_eos=True, temperature=0)
    assert next(stream).token_ids
    stream.close()


def leave_http(app: ServedApp) -> None:
    """Read one event of a long answer, then close the connection."""
    body = {
        "model": MODEL,
        "prompt": "ha ha ha ha ha ha",
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    url = f"{app.http_url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
        assert next(response.iter_lines()).startswith("data: ")


@pytest.mark.parametrize("kinds", [("grpc", "http"), ("grpc",), ("grpc",), ("grpc",)])
def test_50_clients_that_leave(app: ServedApp, client: Client, kinds: tuple[str, ...]) -> None:
    leave = {"grpc": partial(leave_grpc, client), "http": partial(leave_http, app)}
    together([leave[kinds[i % len(kinds)]] for i in range(NUM_LEAVING)])
    wait_until_idle(app, GONE_S)
    reference = REFERENCES["P-NUMS"]
    answer = client.generate(reference.prompt, max_tokens=16, temperature=0)
    assert answer.token_ids == reference.token_ids
    assert app.health()["num_targets"] == 1
