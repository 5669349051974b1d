"""The HTTP application over a real server: answers, streams, errors, disconnects."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from specdist.api.model_card import ModelCard
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


async def test_chat(card: ModelCard) -> None:
    response = await post(counting(card), card, CHAT, messages=HI, model="test-model", seed=5)
    body = response.json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": COUNTING}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    assert (body["object"], body["model"], body["seed"]) == ("chat.completion", "test-model", 5)
    assert response.headers["x-request-id"] == body["id"]
    num_tokens = len(card.tokenizer.encode(COUNTING)) + 1
    usage, stats = body["usage"], body["speculation"]
    assert usage["completion_tokens"] == num_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + num_tokens
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == stats["num_accepted_tokens"] > 0
    assert sum(details.values()) <= num_tokens  # B110
    assert (stats["rule"], stats["lossless"]) == ("coupled", True)
    assert (
        stats["draft_acceptance_rate"] == stats["num_accepted_tokens"] / stats["num_draft_tokens"]
    )


@pytest.mark.parametrize("steps", [(1,), (3, 1), (17,)])
async def test_a_stream_joins_to_the_whole_answer(card: ModelCard, steps: tuple[int, ...]) -> None:
    """B031: every token of a chunk counts."""
    asked: dict[str, Any] = {"messages": HI, "stream": True}
    response = await post(
        counting(card, steps), card, CHAT, **asked, stream_options={"include_usage": True}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content", "") for d in deltas) == COUNTING
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "stop"
    ]
    assert all(c["usage"] is None for c in chunks)
    assert len({c["id"] for c in chunks}) == 1
    assert chunks[-1]["seed"] == 77
    assert chunks[-1]["speculation"] == usage["speculation"]
    assert usage["choices"] == []
    whole = await post(counting(card, steps), card, CHAT, messages=HI)
    assert usage["usage"] == whole.json()["usage"]
    plain = events(await post(counting(card, steps), card, CHAT, **asked))
    assert "usage" not in plain[0]
    assert plain[-2]["choices"]


async def test_several_prompts_give_several_choices(card: ModelCard) -> None:
    def script(request: Any) -> list[int]:
        return [*request.prompt_token_ids, EOS]

    prompts = ["ha", "1, 2", "fox"]
    response = await post(ScriptedBackend(script), card, COMPLETIONS, prompt=prompts)
    body = response.json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == list(enumerate(prompts))
    num_prompt = sum(len(card.tokenizer.encode(p)) for p in prompts)
    assert body["usage"]["prompt_tokens"] == num_prompt
    assert body["usage"]["completion_tokens"] == num_prompt + 3
    assert [c["seed"] for c in body["choices"]] == [77] * 3
    streamed = await post(
        ScriptedBackend(script, pause_s=0.001), card, COMPLETIONS, prompt=prompts, stream=True
    )
    *chunks, done = events(streamed)
    texts = [""] * 3
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert (texts, done) == (prompts, "[DONE]")


async def test_chat_logprobs_have_the_bytes_of_partial_characters(card: ModelCard) -> None:
    """B028, B029: each token and each alternative with its own bytes."""
    ids = card.tokenizer.encode("Ω")
    response = await post(
        ScriptedBackend(ids), card, CHAT, messages=HI, logprobs=True, top_logprobs=3, max_tokens=2
    )
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert [bytes(e["bytes"]) for e in content] == [b"\xce", b"\xa9"]
    assert [e["token"] for e in content] == ["\ufffd", "\ufffd"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert all(t["bytes"] for t in entry["top_logprobs"])


async def test_streamed_logprobs_equal_the_whole_list(card: ModelCard) -> None:
    """B030, B016: one entry for each token, with its own alternatives."""
    asked: dict[str, Any] = {"messages": HI, "logprobs": True, "top_logprobs": 2}
    whole = (await post(counting(card, (9,)), card, CHAT, **asked)).json()
    expected = whole["choices"][0]["logprobs"]["content"]
    assert len(expected) == whole["usage"]["completion_tokens"]
    assert len({json.dumps(e["top_logprobs"]) for e in expected}) > 3
    *chunks, _ = events(await post(counting(card, (4,)), card, CHAT, **asked, stream=True))
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [e for p in parts if p for e in p["content"]] == expected


async def test_completion_logprobs(card: ModelCard) -> None:
    """B063: the tokens join to the text and the offsets point into it."""
    backend = ScriptedBackend(card.tokenizer.encode("aΩ ha"), (2,))
    count = len(backend.script)
    body = (await post(backend, card, COMPLETIONS, prompt="x", max_tokens=count, logprobs=2)).json()
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "aΩ ha"
    assert logprobs["tokens"][:3] == ["a", "bytes:\\xce", "bytes:\\xa9"]
    assert logprobs["text_offset"][:4] == [0, 1, 1, 2]
    assert [len(t) for t in logprobs["top_logprobs"]] == [2] * count
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob


async def test_logprobs_of_the_chosen_token_alone(card: ModelCard) -> None:
    """B064: logprobs 0, and chat logprobs true without top_logprobs."""
    body = (await post(counting(card), card, COMPLETIONS, prompt="x", logprobs=0)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == body["usage"]["completion_tokens"]
    assert logprobs["top_logprobs"] == []
    body = (await post(counting(card), card, CHAT, messages=HI, logprobs=True)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert all(e["top_logprobs"] == [] and e["logprob"] <= 0 for e in content)


async def test_the_openai_client(card: ModelCard) -> None:
    async with http_server(counting(card), card) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client:
            answer = await client.chat.completions.create(
                model="test-model", messages=HI, logprobs=True, extra_body={"top_k": 5}
            )
            assert answer.choices[0].message.content == COUNTING
            assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0
            assert answer.speculation["rule"] == "coupled"
            stream = await client.completions.create(
                model="test-model", prompt="x", max_tokens=99, stream=True
            )
            assert "".join([c.choices[0].text async for c in stream]) == COUNTING
            assert [m.id async for m in client.models.list()] == ["test-model"]
            assert (await client.models.retrieve("test-model")).owned_by == "specdist"
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="test-model", messages=HI, n=2)
            assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("gpt/4")
