"""The asyncio client: the same calls as ``specdist.client.sync``, awaited.

Create it inside a running event loop. ``stream`` returns an asynchronous generator:
closing it, or cancelling the task that reads it, cancels the request on the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, Unpack

import grpc
import grpc.aio

from specdist.api.generated import specdist_pb2 as pb
from specdist.api.generated import specdist_pb2_grpc as rpc
from specdist.client import options as opts
from specdist.client import results
from specdist.client.failures import Attempts, to_error
from specdist.client.options import Message, Options, Prompt
from specdist.client.results import Answer, Chunk, ModelInfo, Tokens


class AsyncClient:
    """A connection to one service, made when it is first needed."""

    def __init__(
        self,
        address: str = "127.0.0.1:9000",
        *,
        timeout_s: float | None = None,
        max_retries: int = 3,
        application: str = opts.DEFAULT_APPLICATION,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """``timeout_s`` bounds each call; ``credentials`` turn TLS on."""
        channel_options = list(opts.CHANNEL_OPTIONS)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, channel_options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, channel_options)
        self._stub = rpc.GenerationStub(self._channel)
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._application = application

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """The whole answer to a text, to token ids or to a list of chat messages."""
        request = opts.generate_request(prompt, options)
        message = await self._call(self._stub.Generate, request, options.get("timeout_s"))
        return results.read_answer(message)

    async def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Answer:
        """The answer to a conversation of {"role", "content"} messages."""
        return await self.generate(messages, **options)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGenerator[Chunk, None]:
        """The answer piece by piece; the last chunk has the finish reason and the usage."""
        request = opts.generate_request(prompt, options)
        return self._stream(request, options.get("timeout_s"))

    async def tokenize(self, prompt: str | Sequence[Message]) -> Tokens:
        """The token ids that ``generate`` would see."""
        message = await self._call(self._stub.Tokenize, opts.tokenize_request(prompt), None)
        return results.read_tokens(message)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> str:
        """The text of token ids."""
        request = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return str((await self._call(self._stub.Detokenize, request, None)).text)

    async def model_info(self) -> ModelInfo:
        """What is served, within which limits, and whether it is ready."""
        message = await self._call(self._stub.GetModelInfo, pb.GetModelInfoRequest(), None)
        return results.read_model_info(message)

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _attempts(self, timeout_s: float | None) -> Attempts:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        return Attempts(self._max_retries, ends_at)

    def _begin(self, method: Callable[..., Any], request: Any, attempts: Attempts) -> Any:
        left_s = attempts.time_left(time.monotonic())
        request_id = getattr(request, "request_id", None)
        metadata = opts.call_metadata(self._application, left_s, request_id)
        return method(request, timeout=left_s, metadata=metadata)

    async def _call(self, method: Callable[..., Any], request: Any, timeout_s: float | None) -> Any:
        attempts = self._attempts(timeout_s)
        while True:
            try:
                return await self._begin(method, request, attempts)
            except grpc.RpcError as error:
                failure = to_error(error)
            await asyncio.sleep(attempts.next_pause(failure, time.monotonic()))

    async def _stream(
        self, request: pb.GenerateRequest, timeout_s: float | None
    ) -> AsyncGenerator[Chunk, None]:
        attempts = self._attempts(timeout_s)
        while True:
            has_begun = False
            call = self._begin(self._stub.GenerateStream, request, attempts)
            try:
                async for message in call:
                    has_begun = True
                    yield results.read_chunk(message)
                return
            except grpc.RpcError as error:
                failure = to_error(error)
            finally:
                call.cancel()  # no effect on a call that has ended
            if has_begun:
                raise failure
            await asyncio.sleep(attempts.next_pause(failure, time.monotonic()))
