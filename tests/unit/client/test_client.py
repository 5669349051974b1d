"""Both clients against a real gRPC server: results, errors, retries, cancelling."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from specdist.api.model_card import ModelCard
from specdist.client import Answer, AsyncClient, Client
from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    SpecdistError,
    UnavailableError,
)
from tests.unit.api.fakes import EOS, ScriptedBackend, write_model_folder
from tests.unit.api.servers import grpc_server

COUNTING = "1, 2, 3, 4, 5, 6"
HI = [{"role": "user", "content": "ha"}]


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    folder = write_model_folder(tmp_path_factory.mktemp("model"))
    return ModelCard.load(folder, name="test-model", max_model_len=128)


def counting(card: ModelCard, **more) -> ScriptedBackend:
    return ScriptedBackend([*card.tokenizer.encode(COUNTING), EOS], (3, 1), **more)


def endless() -> ScriptedBackend:
    return ScriptedBackend([60], endless=True, obedient=False, pause_s=0.01)


class Recovering(ScriptedBackend):
    """Fails its first calls, then works."""

    num_failures = 2

    async def generate(self, request):
        if len(self.requests) < self.num_failures:
            self.requests.append(request)
            raise self.failure
        async for delta in super().generate(request):
            yield delta


@contextmanager
def threaded_server(backend: ScriptedBackend, card: ModelCard) -> Iterator[str]:
    """The server in a loop of its own, for the client that blocks."""
    address: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with grpc_server(backend, card) as found:
            address.set_result(found)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield address.result(timeout=10)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def wait_until_closed(backend: ScriptedBackend) -> None:
    for _ in range(200):
        if backend.num_closed and not backend.num_open:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the request is still open in the backend")


def check_answer(card: ModelCard, answer: Answer) -> None:
    assert (answer.text, answer.finish_reason, answer.model) == (COUNTING, "stop", "test-model")
    assert answer.token_ids == (*card.tokenizer.encode(COUNTING), EOS)
    assert [e.token_id for e in answer.logprobs] == list(answer.token_ids)
    assert answer.logprobs[0].top[0].token_bytes == b"1"
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.speculation.rule == "coupled"
    assert isinstance(answer.speculation.acceptance_histogram, tuple)
    with pytest.raises(AttributeError):
        answer.text = "other"  # type: ignore[misc]


def test_the_blocking_client(card: ModelCard) -> None:
    backend = counting(card)
    with threaded_server(backend, card) as address, Client(address) as client:
        check_answer(card, client.generate("x", max_tokens=64, logprobs=2, request_id="mine"))
        sampling = backend.requests[0].sampling
        assert (sampling.max_tokens, sampling.temperature) == (64, 1.0)
        assert client.chat(HI, temperature=0).text == COUNTING
        assert backend.requests[1].sampling.temperature == 0
        assert client.generate([5, 6], stop="4").text == "1, 2, 3, "
        chunks = list(client.stream(HI, speculation={"max_tokens": 2}))
        assert "".join(c.text for c in chunks) == COUNTING
        assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert (chunks[-1].seed, chunks[0].usage, chunks[0].seed) == (77, None, None)
        assert backend.requests[3].speculation.max_tokens == 2
        tokens = client.tokenize("ha ha")
        assert tokens.token_ids == tuple(card.tokenizer.encode("ha ha"))
        assert "".join(tokens.tokens) == "ha ha"
        assert len(client.tokenize(HI)) == len(card.tokenizer.encode_chat(HI))
        assert client.detokenize(tokens.token_ids) == "ha ha"
        assert client.model_info().rules == ("coupled", "rejection", "traversal")


async def test_the_async_client(card: ModelCard) -> None:
    async with grpc_server(counting(card), card) as address, AsyncClient(address) as client:
        check_answer(card, await client.generate("x", max_tokens=64, logprobs=2))
        assert (await client.chat(HI)).text == COUNTING
        chunks = [c async for c in client.stream("x")]
        assert "".join(c.text for c in chunks) == COUNTING
        assert chunks[-1].usage.completion_tokens == len(card.tokenizer.encode(COUNTING)) + 1
        assert await client.detokenize((await client.tokenize("ha")).token_ids) == "ha"
        assert (await client.model_info()).ready


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OverloadedError("full", retry_after_s=2.5), OverloadedError),
        (UnavailableError("no target"), UnavailableError),
        (RuntimeError("secret"), InternalError),
    ],
)
async def test_failures_are_errors_of_their_kind(
    card: ModelCard, failure: Exception, kind: type[SpecdistError]
) -> None:
    backend = counting(card, fail_after=0, failure=failure)
    async with grpc_server(backend, card) as url, AsyncClient(url, max_retries=0) as client:
        with pytest.raises(kind) as caught:
            await client.generate("x")
        assert caught.value.retry_after_s == getattr(failure, "retry_after_s", None)
        with pytest.raises(kind):
            await anext(client.stream("x"))


async def test_wrong_requests_name_their_field(card: ModelCard) -> None:
    async with grpc_server(counting(card), card) as address, AsyncClient(address) as client:
        with pytest.raises(InvalidRequestError, match="got 3") as caught:
            await client.generate("x", temperature=3)
        assert caught.value.param == "sampling.temperature"
        with pytest.raises(ModelNotFoundError):
            await client.generate("x", model="other")
        with pytest.raises(InvalidRequestError):
            await client.generate("x", max_tokens=-1)
        with pytest.raises(InvalidRequestError, match="gamma"):
            await client.generate("x", speculation={"gamma": 1})
        with pytest.raises(TypeError, match="temprature"):
            await client.generate("x", temprature=1)


def recovering(card: ModelCard) -> Recovering:
    ids = [*card.tokenizer.encode(COUNTING), EOS]
    return Recovering(ids, failure=UnavailableError("loading"))


async def test_unavailable_is_tried_again_before_an_answer_begins(card: ModelCard) -> None:
    backend = recovering(card)
    async with grpc_server(backend, card) as address, AsyncClient(address) as client:
        chunks = [c async for c in client.stream("x")]
    assert "".join(c.text for c in chunks) == COUNTING
    assert len(backend.requests) == 3
    backend = recovering(card)
    async with grpc_server(backend, card) as url, AsyncClient(url, max_retries=1) as client:
        with pytest.raises(UnavailableError, match="loading"):
            await client.generate("x")
    assert len(backend.requests) == 2


async def test_a_broken_stream_is_not_tried_again(card: ModelCard) -> None:
    backend = counting(card, fail_after=2, failure=UnavailableError("target lost"))
    async with grpc_server(backend, card) as address, AsyncClient(address) as client:
        texts = []
        with pytest.raises(UnavailableError, match="target lost"):
            async for chunk in client.stream("x"):
                texts.append(chunk.text)
    assert (len(backend.requests), len(texts)) == (1, 2)


async def test_nobody_listens() -> None:
    async with AsyncClient("127.0.0.1:1", max_retries=1) as client:
        with pytest.raises(UnavailableError):
            await client.generate("x")
    with Client("127.0.0.1:1", max_retries=1) as blocking, pytest.raises(UnavailableError):
        blocking.generate("x")


async def test_the_deadline_travels(card: ModelCard) -> None:
    backend = endless()
    async with grpc_server(backend, card) as address:
        async with AsyncClient(address, timeout_s=0.2) as client:
            with pytest.raises(DeadlineError):
                await client.generate("x")
            seen = []
            with pytest.raises(DeadlineError):
                async for chunk in client.stream("x", timeout_s=0.3):
                    seen.append(chunk)
            assert seen
        await asyncio.wait_for(backend.closed.wait(), 1)
        assert 0.1 < backend.requests[0].timeout_s <= 0.2 < backend.requests[1].timeout_s <= 0.3


def test_a_stream_that_is_closed_or_dropped_is_cancelled(card: ModelCard) -> None:
    for end in ("close", "drop"):
        backend = endless()
        with threaded_server(backend, card) as address, Client(address) as client:
            stream = client.stream("x")
            next(stream)
            if end == "close":
                stream.close()
            else:
                del stream
                gc.collect()
            wait_until_closed(backend)


async def test_an_async_stream_that_is_closed_or_cancelled_ends(card: ModelCard) -> None:
    async def read_all(client: AsyncClient) -> None:
        async for _ in client.stream("x"):
            pass

    for end in ("close", "cancel"):
        backend = endless()
        async with grpc_server(backend, card) as address, AsyncClient(address) as client:
            if end == "close":
                stream = client.stream("x")
                await anext(stream)
                await stream.aclose()
            else:
                task = asyncio.create_task(read_all(client))
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.wait_for(backend.closed.wait(), 1)
            assert backend.num_open == 0


async def test_messages_beyond_four_megabytes_travel(card: ModelCard) -> None:
    """B115, B116: limits are raised in both directions."""
    async with grpc_server(counting(card), card) as address, AsyncClient(address) as client:
        text = await client.detokenize([0] * 400_000, skip_special_tokens=False)
        assert text == "<|endoftext|>" * 400_000
        with pytest.raises(InvalidRequestError, match="at most 127 tokens"):
            await client.generate("x " * (5 << 19))


def test_the_client_is_light() -> None:
    code = "import sys, specdist.client\n"
    code += "print(*[m for m in ('torch', 'ray', 'starlette', 'jinja2') if m in sys.modules])"
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr


def test_structured_outputs_as_mapping_or_text(card: ModelCard) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    backend = counting(card)
    with threaded_server(backend, card) as address, Client(address) as client:
        for form in (
            {"json": schema},
            {"json": json.dumps(schema)},
            {"regex": "a+"},
            {"choice": ["a", "b"]},
        ):
            client.generate("x", structured_outputs=form)
        with pytest.raises(InvalidRequestError, match="structured_outputs") as caught:
            client.generate("x", structured_outputs={"grammar": "x"})
        assert caught.value.param == "structured_outputs"
        with pytest.raises(InvalidRequestError, match="unclosed"):
            client.generate("x", structured_outputs={"regex": "["})
    asked = [r.sampling.structured_output for r in backend.requests]
    assert asked[0] == asked[1] and [a.kind for a in asked if a] == [
        *("json_schema", "json_schema", "regex", "choice"),
    ]
