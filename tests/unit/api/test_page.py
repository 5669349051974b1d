"""The page's files as they are served, and what each chunk of a stream says of its step."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest

from specdist.api.model_card import ModelCard
from specdist.api.page import MEDIA_TYPES, read_static
from specdist.config import RulesConfig
from tests.unit.api.fakes import EOS, ScriptedBackend
from tests.unit.api.servers import http_server

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "ha"}]
MAX_PAGE_BYTES = 60_000


@pytest.fixture
async def client(card: ModelCard) -> Any:
    server = http_server(ScriptedBackend([EOS]), card)
    async with server as url, httpx.AsyncClient(base_url=url) as connected:
        yield connected


async def test_the_document_and_all_its_files(client: httpx.AsyncClient, card: ModelCard) -> None:
    page = await client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert f"<title>specdist: {card.name}</title>" in page.text
    assert not re.search(r"\$[A-Z]", page.text), "every place is filled"
    assert not re.search(r"<script(?! type=\"module\" src=)|style=|\son\w+=", page.text)
    named = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page.text))
    folder = f"{next(iter(named)).rpartition('/')[0]}/"
    files = {folder + name for name in read_static() if name != "index.html"}
    assert named <= files
    size = len(page.content)
    for path in files:
        response = await client.get(f"/{path}")
        size += len(response.content)
        assert response.status_code == 200
        assert response.headers["content-type"] == MEDIA_TYPES[path.rpartition(".")[2]]
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert size < MAX_PAGE_BYTES


async def test_a_browser_that_has_the_document_gets_304(client: httpx.AsyncClient) -> None:
    tag = (await client.get("/")).headers["etag"]
    again = await client.get("/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/", headers={"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/0123456789abcdef/main.js",
        "/static/{version}/none.js",
        "/static/{version}/index.html",
        "/static/{version}/..%2fpage.py",
        "/static/main.js",
    ],
)
async def test_other_files_are_not_there(client: httpx.AsyncClient, path: str) -> None:
    found = re.search(r"static/(\w+)/", (await client.get("/")).text)
    assert found is not None
    response = await client.get(path.replace("{version}", found[1]))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")


async def test_names_are_escaped_and_lossy_rules_only_where_allowed(card: ModelCard) -> None:
    strange = ModelCard(
        '"><script>', card.tokenizer, 64, card.vocab_size, RulesConfig(default="traversal")
    )
    server = http_server(ScriptedBackend([EOS]), strange)
    async with server as url, httpx.AsyncClient(base_url=url) as client:
        page = (await client.get("/")).text
    assert "<script>" not in page and "&quot;&gt;&lt;script&gt;" in page
    assert "<option selected>traversal</option>" in page
    assert "<option>coupled</option>" in page and "typical" not in page


async def test_each_chunk_tells_of_its_step(card: ModelCard) -> None:
    """Steps that show nothing count too; the last one is cut where the answer ends."""
    ids = [*card.tokenizer.encode("Ω ha 1, 2, 3"), EOS, 60, 61]
    backend = ScriptedBackend(ids, (1, 1, 3), obedient=False)
    async with http_server(backend, card) as url:
        steps = await steps_of(url)
        with_logprobs = await steps_of(url, logprobs=True)
    assert [s["step"] for s in steps] == list(range(2, steps[-1]["step"] + 1)), "the first is half"
    assert with_logprobs[1:] == steps
    num_tokens = len(ids) - 2
    assert sum(s["num_tokens"] for s in with_logprobs) == num_tokens
    assert with_logprobs[2] == {
        "step": 3,
        "num_tokens": 3,
        "num_draft_tokens": 4,
        "num_draft_tokens_accepted": 2,
    }
    assert all(s["num_draft_tokens_accepted"] <= s["num_tokens"] for s in with_logprobs)


async def steps_of(url: str, **options: Any) -> list[dict[str, int]]:
    """What the chunks of one stream say, the opening one left out."""
    async with httpx.AsyncClient(base_url=url) as client:
        body = {"messages": HI, "stream": True, **options}
        lines = (await client.post(CHAT, json=body)).text.split("\n\n")[1:-2]
    return [json.loads(line[6:])["choices"][0]["speculation"] for line in lines]


async def test_the_openai_client_reads_it(card: ModelCard) -> None:
    backend = ScriptedBackend([*card.tokenizer.encode("ha ha ha"), EOS], (2,))
    async with http_server(backend, card) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        stream = await client.chat.completions.create(model="test-model", messages=HI, stream=True)
        choices = [chunk.choices[0] async for chunk in stream][1:]
        text = await client.completions.create(model="test-model", prompt="x", stream=True)
        texts = [chunk.choices[0].speculation["step"] async for chunk in text]
        await client.close()
    assert "".join(choice.delta.content or "" for choice in choices) == "ha ha ha"
    assert [choice.speculation["step"] for choice in choices] == [1, 2] == texts
