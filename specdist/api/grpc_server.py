"""GenerationService on a plain ``grpc.aio`` server: for tests and for use without Ray.

Maps errors to status codes and closes the stream's generator when the client goes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from specdist.api.error_map import grpc_error
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.generated import specdist_pb2_grpc as rpc
from specdist.api.grpc_service import GenerationService, read_timeout

MAX_MESSAGE_BYTES = 64 << 20
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

T = TypeVar("T")
Context = Any  # grpc.aio.ServicerContext is generic over both message types


def add_to_plain_server(server: grpc.aio.Server, service: GenerationService) -> None:
    """Register the service on a server made with ``SERVER_OPTIONS``."""
    rpc.add_GenerationServicer_to_server(_Servicer(service), server)


class _Servicer(rpc.GenerationServicer):
    """The generated interface over the service; method names are gRPC's."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        return await _answer(self._generate(request, context), context)

    async def _generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        return await self._service.generate(request, **_call_arguments(context))

    async def GenerateStream(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateChunk]:
        try:
            chunks = self._service.generate_stream(request, **_call_arguments(context))
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            await _abort(error, context)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        return await _answer(self._service.tokenize(request), context)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        return await _answer(self._service.detokenize(request), context)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return await _answer(self._service.get_model_info(request), context)


async def _answer(work: Awaitable[T], context: Context) -> T:
    try:
        return await work
    except Exception as error:
        await _abort(error, context)


async def _abort(error: Exception, context: Context) -> NoReturn:
    code, details, metadata = grpc_error(error, _metadata(context).get("x-request-id", ""))
    await context.abort(code, details, metadata)
    raise error  # abort raises; this is for type checkers


def _metadata(context: Context) -> dict[str, str]:
    return {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}


def _call_arguments(context: Context) -> dict[str, Any]:
    metadata = _metadata(context)
    timeout_s = read_timeout(metadata.get("x-timeout-s"))
    return {"timeout_s": timeout_s, "request_id": metadata.get("x-request-id")}
