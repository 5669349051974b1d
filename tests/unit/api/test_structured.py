"""What a request may say about the form of its answer, over HTTP and gRPC, and what it may not."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import httpx
import openai
import pytest

from specdist.api import grpc_convert
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.generated import specdist_pb2_grpc as rpc
from specdist.api.model_card import ModelCard
from specdist.api.openai_requests import read_chat, read_completion
from specdist.errors import InvalidRequestError
from specdist.grammar import Grammars
from specdist.protocol.request import StructuredOutput
from tests.unit.api.fakes import EOS, ScriptedBackend
from tests.unit.api.servers import grpc_server, http_server

HI = [{"role": "user", "content": "ha"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
BY_SCHEMA = StructuredOutput("json_schema", TEXT)
ANY_OBJECT = StructuredOutput("json_schema", '{"type": "object"}')


def named(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def form(card: ModelCard, **body: Any) -> StructuredOutput | None:
    """The same from both endpoints."""
    chat = read_chat(card, {"messages": HI, **body}).answers[0]
    plain = read_completion(card, {"prompt": "ha", **body}).answers[0]
    assert chat.generation.sampling.structured_output == (
        plain.generation.sampling.structured_output
    )
    return plain.generation.sampling.structured_output


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        ({"response_format": named()}, BY_SCHEMA),
        ({"response_format": named(strict=True, description="d")}, BY_SCHEMA),
        ({"response_format": named(strict=False)}, BY_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, BY_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, BY_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
        ({"structured_outputs": {"regex": "[0-9]+"}}, StructuredOutput("regex", "[0-9]+")),
        (
            {"structured_outputs": {"choice": ["é", "b", "b"]}},
            StructuredOutput("choice", '["é", "b"]'),
        ),
        (
            {
                "structured_outputs": {"regex": "a", "json": None, "json_object": False},
                "response_format": {"type": "text"},
            },
            StructuredOutput("regex", "a"),
        ),
    ],
)
def test_forms_that_are_read(
    card: ModelCard, body: dict[str, Any], expected: StructuredOutput | None
) -> None:
    assert form(card, **body) == expected


FORMAT, JSON_SCHEMA = "response_format", "response_format.json_schema"
OUTPUTS = "structured_outputs"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({FORMAT: "json"}, FORMAT, "an object"),
        ({FORMAT: {}}, f"{FORMAT}.type", "one of text, json_object, json_schema, got null"),
        ({FORMAT: {"type": "grammar"}}, f"{FORMAT}.type", "one of text"),
        ({FORMAT: {"type": "text", "schema": {}}}, f"{FORMAT}.schema", "unknown field"),
        ({FORMAT: {"type": "json_schema"}}, JSON_SCHEMA, "an object, got null"),
        ({FORMAT: {"type": "json_schema", "schema": SCHEMA}}, f"{FORMAT}.schema", "unknown"),
        (
            {FORMAT: {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            f"{JSON_SCHEMA}.name",
            "1 to 64 letters",
        ),
        ({FORMAT: named(name="a b")}, f"{JSON_SCHEMA}.name", "1 to 64 letters"),
        ({FORMAT: named(strict="yes")}, f"{JSON_SCHEMA}.strict", "true or false"),
        ({FORMAT: named(schema=None)}, f"{JSON_SCHEMA}.schema", "an object, got null"),
        ({FORMAT: named(schema=True)}, f"{JSON_SCHEMA}.schema", "an object, got true"),
        ({FORMAT: named({"type": "strin"})}, f"{JSON_SCHEMA}.schema", "cannot be used"),
        ({FORMAT: named({"not": {}})}, f"{JSON_SCHEMA}.schema", '"not"'),
        ({FORMAT: named({"const": "\ud800"})}, f"{JSON_SCHEMA}.schema", "surrogates"),
        (
            {FORMAT: {"type": "json_object"}, OUTPUTS: {"regex": "a"}},
            OUTPUTS,
            "must be absent where response_format",
        ),
        ({OUTPUTS: []}, OUTPUTS, "an object"),
        ({OUTPUTS: {}}, OUTPUTS, "exactly one of json, json_object, regex, choice, got none"),
        ({OUTPUTS: {"json_object": False}}, OUTPUTS, "got none"),
        ({OUTPUTS: {"regex": "a", "choice": ["b"]}}, OUTPUTS, "got regex and choice"),
        ({OUTPUTS: {"grammar": "start: x"}}, f"{OUTPUTS}.grammar", "unknown field"),
        ({OUTPUTS: {"json": "{"}}, f"{OUTPUTS}.json", "must be a JSON schema"),
        ({OUTPUTS: {"json": "[" * 10**5}}, f"{OUTPUTS}.json", "must be a JSON schema"),
        ({OUTPUTS: {"json": [1]}}, f"{OUTPUTS}.json", "an object, got [1]"),
        ({OUTPUTS: {"json_object": 1}}, f"{OUTPUTS}.json_object", "true or false"),
        ({OUTPUTS: {"regex": "["}}, f"{OUTPUTS}.regex", "unclosed character class"),
        ({OUTPUTS: {"regex": 5}}, f"{OUTPUTS}.regex", "a string"),
        ({OUTPUTS: {"choice": []}}, f"{OUTPUTS}.choice", "not empty"),
        ({OUTPUTS: {"choice": "abc"}}, f"{OUTPUTS}.choice", "a list of strings"),
        ({OUTPUTS: {"choice": ["a", 1]}}, f"{OUTPUTS}.choice[1]", "a string"),
        ({OUTPUTS: {"choice": [""]}}, f"{OUTPUTS}.choice", "not empty"),
        (
            {OUTPUTS: {"regex": "a"}, "ignore_eos": True},
            "ignore_eos",
            "must be false where the answer has a form",
        ),
        ({"guided_regex": "[0-9]+"}, "guided_regex", "unknown field"),
    ],
)
def test_what_is_wrong_is_named(
    card: ModelCard, body: dict[str, Any], param: str, message: str
) -> None:
    """B066: what cannot be used is a clear 400."""
    for read, asked in ((read_chat, {"messages": HI}), (read_completion, {"prompt": "ha"})):
        with pytest.raises(InvalidRequestError) as caught:
            read(card, {**asked, **body})
        assert caught.value.param == param
        assert message in caught.value.message


def message(**fields: Any) -> pb.GenerateRequest:
    sampling = pb.SamplingParams(structured_outputs=pb.StructuredOutputs(**fields))
    return pb.GenerateRequest(prompt="ha", sampling=sampling)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"json_object": True}, ANY_OBJECT),
        ({"regex": "[0-9]+"}, StructuredOutput("regex", "[0-9]+")),
        ({"choice": ["a", "b"]}, StructuredOutput("choice", '["a", "b"]')),
    ],
)
def test_forms_of_a_message(
    card: ModelCard, fields: dict[str, Any], expected: StructuredOutput
) -> None:
    prepared = grpc_convert.prepare(card, message(**fields), None, None)
    assert prepared.generation.sampling.structured_output == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "sampling.structured_outputs"),
        ({"json_object": True, "regex": "a"}, "sampling.structured_outputs"),
        ({"json": "{"}, "sampling.structured_outputs.json"),
        ({"json": '{"not": {}}'}, "sampling.structured_outputs.json"),
        ({"regex": "("}, "sampling.structured_outputs.regex"),
    ],
)
async def test_errors_over_grpc(card: ModelCard, fields: dict[str, Any], param: str) -> None:
    async with (
        grpc_server(ScriptedBackend(), card) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.GenerationStub(channel).Generate(message(**fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert param in caught.value.details()
    assert dict(caught.value.trailing_metadata())["error-param"] == param


async def test_openais_own_client(card: ModelCard) -> None:
    """Its typed ``parse`` sends a strict schema; a wrong one is its BadRequestError."""
    import pydantic

    class Count(pydantic.BaseModel):
        a: int

    backend = ScriptedBackend([*card.tokenizer.encode('{"a": 5}'), EOS], (3, 1))
    async with http_server(backend, card) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = await client.chat.completions.parse(
            model="test-model", messages=HI, response_format=Count
        )
        assert answer.choices[0].message.parsed == Count(a=5)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(
                model="test-model", prompt="ha", extra_body={OUTPUTS: {"regex": "["}}
            )
    assert caught.value.param == f"{OUTPUTS}.regex"
    (request,) = backend.requests
    asked = request.sampling.structured_output
    assert asked is not None and asked.kind == "json_schema"
    assert json.loads(asked.text)["required"] == ["a"]


@pytest.mark.parametrize("name", [OUTPUTS, "structured\\u005foutputs"])
async def test_compiling_does_not_stop_the_others(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """However JSON spells the name."""

    def slow(self: Grammars, spec: StructuredOutput) -> None:
        time.sleep(0.3)

    monkeypatch.setattr(Grammars, "check", slow)
    async with http_server(ScriptedBackend([5, EOS]), card) as url, httpx.AsyncClient() as client:
        body = f'{{"prompt": "ha", "{name}": {{"regex": "a"}}}}'
        work = asyncio.create_task(client.post(f"{url}/v1/completions", content=body))
        ticks = 0
        while not work.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert (await work).status_code == 200
    assert ticks > 5
