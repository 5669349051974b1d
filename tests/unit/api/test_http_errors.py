"""The HTTP application when something is wrong: errors, other urls, clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from specdist.api.model_card import ModelCard
from specdist.errors import OverloadedError, UnavailableError
from specdist.protocol.health import HealthReport
from tests.unit.api.fakes import EOS, ScriptedBackend
from tests.unit.api.servers import http_server

COUNTING = "1, 2, 3, 4, 5, 6"
HI = [{"role": "user", "content": "ha"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def counting(card: ModelCard, steps: tuple[int, ...] = (3, 1), **more: Any) -> ScriptedBackend:
    return ScriptedBackend([*card.tokenizer.encode(COUNTING), EOS], steps, **more)


async def post(backend: ScriptedBackend, card: ModelCard, path: str, **body: Any) -> httpx.Response:
    async with http_server(backend, card) as url, httpx.AsyncClient(base_url=url) as client:
        return await client.post(path, json=body)


def events(response: httpx.Response) -> list[Any]:
    """The values of a stream; [DONE] as a string."""
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    found = [p.removeprefix("data: ") for p in parts]
    return [p if p == "[DONE]" else json.loads(p) for p in found]


async def test_a_failure_in_a_stream_is_an_error_event(card: ModelCard) -> None:
    """B137: an error event, then the end: no finish reason, no [DONE]."""
    backend = counting(card, fail_after=3)
    found = events(await post(backend, card, CHAT, messages=HI, stream=True))
    assert found[-1]["error"]["type"] == "server_error"
    assert "lost its mind" not in json.dumps(found)
    assert all(c["choices"][0]["finish_reason"] is None for c in found[:-1])
    async with http_server(counting(card, fail_after=3), card) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.chat.completions.create(
                model="test-model", messages=HI, stream=True
            )
            with pytest.raises(openai.APIError, match="internal error"):
                async for _ in stream:
                    pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_status(
    card: ModelCard, stream: bool
) -> None:
    """B119: back-pressure is a 429 with Retry-After, a lost target a 503."""
    full = OverloadedError("the queue is full", retry_after_s=1.2)
    response = await post(
        counting(card, fail_after=0, failure=full), card, CHAT, messages=HI, stream=stream
    )
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert response.json()["error"]["type"] == "rate_limit_error"
    gone = UnavailableError("no target is running")
    response = await post(
        counting(card, fail_after=0, failure=gone), card, CHAT, messages=HI, stream=stream
    )
    assert response.status_code == 503
    response = await post(counting(card, fail_after=0), card, CHAT, messages=HI, stream=stream)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "internal_error"
    assert "request id chatcmpl-" in error["message"]  # the log has the rest under this id


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[1]", None),
        (b'{"prompt": "x", "temperature": NaN}', "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"prompt": "\\ud800"}', None),
        (b'{"prompt": "x", "\\ud800": 1}', "unknown_parameter"),
        (b'{"prompt": "x", "seed": 1e400}', None),
    ],
)
async def test_bodies_that_are_no_request(
    card: ModelCard, content: bytes, code: str | None
) -> None:
    async with http_server(counting(card), card) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(COMPLETIONS, content=content)
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


async def test_other_urls_and_methods_are_error_objects(card: ModelCard) -> None:
    async with http_server(counting(card), card) as url, httpx.AsyncClient(base_url=url) as client:
        missing = await client.get("/v2/x")
        wrong = await client.get(CHAT)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["code"] == "method_not_allowed"


async def test_the_small_pages(card: ModelCard) -> None:
    backend = counting(card)
    async with http_server(backend, card) as url, httpx.AsyncClient(base_url=url) as client:
        models = (await client.get("/v1/models")).json()
        health = await client.get("/health")
        metrics = await client.get("/metrics")
        page = await client.get("/")
        backend.report = HealthReport(False, "the target is loading")
        not_ready = await client.get("/health")
    assert models["data"][0]["id"] == "test-model"
    assert (health.status_code, health.json()["num_targets"]) == (200, 1)
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "specdist_generation_tokens_total 3" in metrics.text
    assert "/v1/chat/completions" in page.text
    assert not_ready.status_code == 503
    assert not_ready.json()["error"]["message"] == "the target is loading"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_the_backend(card: ModelCard, stream: bool) -> None:
    backend = ScriptedBackend([60], endless=True, obedient=False, pause_s=0.01)
    body = {"prompt": "x", "stream": stream, "max_tokens": 100}
    async with http_server(backend, card) as url, httpx.AsyncClient(base_url=url) as client:
        if stream:
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                await anext(response.aiter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(COMPLETIONS, json=body, timeout=0.1)
        await asyncio.wait_for(backend.closed.wait(), 0.4)
        assert backend.num_open == 0


async def test_a_client_that_goes_before_the_first_token(card: ModelCard) -> None:
    backend = ScriptedBackend([60], endless=True, pause_s=30)
    body = {"prompt": ["x", "y"], "stream": True}
    async with http_server(backend, card) as url, httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(COMPLETIONS, json=body, timeout=0.1)
        await asyncio.wait_for(backend.closed.wait(), 1)
        await asyncio.sleep(0.05)
        assert (backend.num_open, backend.num_closed) == (0, 2)
