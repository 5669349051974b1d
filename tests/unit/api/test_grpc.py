"""The gRPC service over a real server, and how errors reach it."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from specdist.api.error_map import grpc_error
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.generated import specdist_pb2_grpc as rpc
from specdist.api.grpc_server import SERVER_OPTIONS
from specdist.api.model_card import ModelCard
from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from tests.unit.api.fakes import EOS, ScriptedBackend
from tests.unit.api.servers import grpc_server

COUNTING = "1, 2, 3, 4, 5, 6"


def counting(card: ModelCard, steps: tuple[int, ...] = (3, 1), **more) -> ScriptedBackend:
    return ScriptedBackend([*card.tokenizer.encode(COUNTING), EOS], steps, **more)


class Rig:
    """A server, a channel and its stub."""

    def __init__(self, backend: ScriptedBackend, card: ModelCard) -> None:
        self._server = grpc_server(backend, card)

    async def __aenter__(self) -> rpc.GenerationStub:
        address = await self._server.__aenter__()
        self._channel = grpc.aio.insecure_channel(address, options=SERVER_OPTIONS)
        return rpc.GenerationStub(self._channel)

    async def __aexit__(self, *error) -> None:
        await self._channel.close()
        await self._server.__aexit__(*error)


async def test_generate(card: ModelCard) -> None:
    async with Rig(counting(card), card) as stub:
        answer = await stub.Generate(pb.GenerateRequest(prompt="x", request_id="mine", logprobs=2))
    assert (answer.text, answer.finish_reason) == (COUNTING, "stop")
    assert (answer.request_id, answer.model, answer.seed) == ("mine", "test-model", 77)
    assert list(answer.token_ids) == [*card.tokenizer.encode(COUNTING), EOS]
    assert [e.token_id for e in answer.logprobs] == list(answer.token_ids)
    assert [len(e.top) for e in answer.logprobs] == [2] * len(answer.token_ids)
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.accepted_prediction_tokens == answer.speculation.num_accepted_tokens > 0
    assert (answer.speculation.rule, answer.speculation.lossless) == ("coupled", True)


@pytest.mark.parametrize("steps", [(1,), (3, 1), (17,)])
async def test_a_stream_joins_to_the_whole_answer(card: ModelCard, steps: tuple[int, ...]) -> None:
    request = pb.GenerateRequest(prompt="x", logprobs=1)
    async with Rig(counting(card, steps), card) as stub:
        whole = await stub.Generate(request)
        chunks = [c async for c in stub.GenerateStream(request)]
    assert "".join(c.text for c in chunks) == whole.text
    assert [i for c in chunks for i in c.token_ids] == list(whole.token_ids)
    assert [e for c in chunks for e in c.logprobs] == list(whole.logprobs)
    accepted = sum(c.num_draft_tokens_accepted for c in chunks)
    assert accepted == whole.usage.accepted_prediction_tokens
    assert [bool(c.finish_reason) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not any(c.HasField("usage") or c.HasField("seed") for c in chunks[:-1])
    last = chunks[-1]
    assert (last.usage, last.speculation, last.seed) == (whole.usage, whole.speculation, whole.seed)


async def test_chat_and_token_ids(card: ModelCard) -> None:
    backend = counting(card)
    message = pb.ChatMessage(role="user", content="ha")
    async with Rig(backend, card) as stub:
        await stub.Generate(pb.GenerateRequest(chat=pb.ChatMessages(messages=[message])))
        await stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6])))
    chat_ids = card.tokenizer.encode_chat([{"role": "user", "content": "ha"}])
    assert [list(r.prompt_token_ids) for r in backend.requests] == [chat_ids, [5, 6]]


async def test_the_small_calls(card: ModelCard) -> None:
    async with Rig(counting(card), card) as stub:
        tokens = await stub.Tokenize(pb.TokenizeRequest(prompt="ha Ω<|im_end|>"))
        text = await stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
        whole = await stub.Detokenize(
            pb.DetokenizeRequest(token_ids=tokens.token_ids, skip_special_tokens=False)
        )
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert list(tokens.token_ids) == card.tokenizer.encode("ha Ω<|im_end|>")
    assert tokens.tokens[-1] == "<|im_end|>"
    assert (text.text, whole.text) == ("ha Ω", "ha Ω<|im_end|>")
    assert (info.model, info.max_model_len, info.ready) == ("test-model", 128, True)
    assert list(info.eos_token_ids) == [EOS]
    assert list(info.rules) == ["coupled", "rejection", "traversal"]
    assert (info.default_rule, info.has_chat_template) == ("coupled", True)


async def test_errors_have_status_details_and_metadata(card: ModelCard) -> None:
    async with Rig(counting(card), card) as stub:
        for call in (stub.Generate, lambda r: anext(aiter(stub.GenerateStream(r)))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(pb.GenerateRequest(prompt="x", sampling={"temperature": 3}))
            error = caught.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "sampling.temperature must be between 0 and 2, got 3.0"
            assert dict(error.trailing_metadata())["error-param"] == "sampling.temperature"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(pb.TokenizeRequest(prompt="x", model="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_failure_in_a_stream_is_a_status(card: ModelCard) -> None:
    """B137: never OK after a broken answer."""
    async with Rig(counting(card, fail_after=3), card) as stub:
        texts = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for chunk in stub.GenerateStream(pb.GenerateRequest(prompt="x")):
                texts.append(chunk.text)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "lost its mind" not in caught.value.details()
        assert COUNTING.startswith("".join(texts)) and texts


async def test_megabytes_of_prompt_are_invalid_not_exhausted(card: ModelCard) -> None:
    """B115: past gRPC's 4 MiB default, refused for its tokens."""
    async with Rig(counting(card), card) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(pb.GenerateRequest(prompt="x " * (5 << 19)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["error-code"] == "context_length_exceeded"


async def test_the_deadline_in_the_metadata_counts(card: ModelCard) -> None:
    """B118: behind Ray Serve the call's own deadline cannot be seen."""
    backend = ScriptedBackend([60], endless=True, obedient=False, pause_s=0.02)
    request = pb.GenerateRequest(prompt="x")
    async with Rig(backend, card) as stub:
        seen = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for chunk in stub.GenerateStream(request, metadata=(("x-timeout-s", "0.2"),)):
                seen.append(chunk)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert seen
        for value, code in (("0", "DEADLINE_EXCEEDED"), ("soon", "INVALID_ARGUMENT")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(request, metadata=(("x-timeout-s", value),))
            assert caught.value.code() is grpc.StatusCode[code]
    assert backend.num_open == 0


async def test_a_client_that_cancels_frees_the_backend(card: ModelCard) -> None:
    backend = ScriptedBackend([60], endless=True, obedient=False, pause_s=0.01)
    async with Rig(backend, card) as stub:
        call = stub.GenerateStream(pb.GenerateRequest(prompt="x"))
        await call.read()
        call.cancel()
        await asyncio.wait_for(backend.closed.wait(), 1)
        backend.closed.clear()
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(pb.GenerateRequest(prompt="x"), timeout=0.1)
        await asyncio.wait_for(backend.closed.wait(), 1)
        assert backend.num_open == 0


@pytest.mark.parametrize(
    ("error", "code", "details", "metadata"),
    [
        (
            InvalidRequestError("é must be é", param="é\n"),
            "INVALID_ARGUMENT",
            "é must be é",
            {"error-type": "invalid_request_error", "error-param": "\\xe9?"},
        ),
        (
            OverloadedError("full", retry_after_s=1.5),
            "RESOURCE_EXHAUSTED",
            "full",
            {
                "error-type": "rate_limit_error",
                "retry-after-s": "1.5",
                "grpc-retry-pushback-ms": "1500",
            },
        ),
        (DeadlineError("late"), "DEADLINE_EXCEEDED", "late", {"error-type": "timeout_error"}),
        (
            UnavailableError("no target"),
            "UNAVAILABLE",
            "no target",
            {"error-type": "service_unavailable_error"},
        ),
        (InternalError("broken"), "INTERNAL", "broken", {"error-type": "server_error"}),
        (asyncio.CancelledError(), "CANCELLED", "the call was cancelled", {}),
        (
            KeyError("secret"),
            "INTERNAL",
            "internal error; the log has it under request id r1",
            {"error-type": "server_error", "error-code": "internal_error"},
        ),
    ],
)
def test_grpc_error(
    error: BaseException, code: str, details: str, metadata: dict[str, str]
) -> None:
    got = grpc_error(error, "r1")
    assert (got[0], got[1], dict(got[2])) == (grpc.StatusCode[code], details, metadata)
