"""What Serve's gRPC proxy calls to register our service; runs in the proxy's process.

A client that leaves while the proxy writes a chunk to it must stop the work behind it.
Serve notices only a client that leaves while the proxy waits for the next chunk: the
handler's generator is dropped at its ``yield`` and the replica goes on to the end of the
answer. Here each streaming handler is read by a task of its own, which is cancelled
whenever the call ends: it always waits inside Serve's code, never at a ``yield``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray.serve._private.proxy_request_response import gRPCStreamingType

from specdist.api.generated import specdist_pb2_grpc as rpc

Handler = Callable[[Any, Any], AsyncIterator[bytes]]


def add_generation_service(servicer: Any, server: Any) -> None:
    """For ``grpc_options.grpc_servicer_functions`` of a Serve config."""
    make_handler = server.service_handler_factory

    def make_cancellable(service_method: str, streaming_type: gRPCStreamingType) -> Any:
        handler = make_handler(service_method=service_method, streaming_type=streaming_type)
        if streaming_type is gRPCStreamingType.UNARY_STREAM:
            return cancelled_with_call(handler)
        return handler

    server.service_handler_factory = make_cancellable
    try:
        rpc.add_GenerationServicer_to_server(servicer, server)
    finally:
        server.service_handler_factory = make_handler


class LastingContext:
    """A call's context that Serve may still ask for its peer when the call is over.

    Serve logs the peer of a cancelled call; gRPC then reads freed memory, and the proxy
    would die with every stream it carries.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._peer = context.peer()

    def peer(self) -> str:
        """The address of the client."""
        return str(self._peer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def cancelled_with_call(handler: Handler) -> Handler:
    """The same handler, whose work is cancelled as soon as the call ends, however it ends."""

    async def unary_stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        lasting = LastingContext(context)

        async def read() -> None:
            async for chunk in handler(request, lasting):
                chunks.put_nowait(chunk)

        reader = asyncio.create_task(read())
        reader.add_done_callback(lambda _: chunks.put_nowait(None))
        context.add_done_callback(lambda _: reader.cancel())
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            await reader  # raises what the handler raised
        finally:
            reader.cancel()

    return unary_stream
