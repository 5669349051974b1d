"""The proxy's streaming handler ends with its call: a real gRPC server and client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from ray.serve._private.proxy_request_response import gRPCStreamingType

from deployments.grpc_proxy import add_generation_service, cancelled_with_call

METHOD = "/specdist.v1.Generation/GenerateStream"
LARGE = b"x" * 65536  # a few of these fill the window of a client that does not read
SOON_S = 5.0


class Work:
    """A handler that never ends by itself, and knows whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.num_chunks = 0

    async def __call__(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0)
                self.num_chunks += 1
                yield LARGE
        except asyncio.CancelledError:
            context.peer()  # Serve asks for it when it logs a cancelled call
            self.stopped.set()
            raise


async def serve(handler: Any) -> tuple[grpc.aio.Server, str]:
    """A server with one streaming method on a port of its own."""
    server = grpc.aio.server()
    methods = {"GenerateStream": grpc.unary_stream_rpc_method_handler(handler)}
    service = grpc.method_handlers_generic_handler("specdist.v1.Generation", methods)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


@pytest.mark.parametrize("round_number", range(5))
def test_a_client_that_leaves_while_a_chunk_is_written_stops_the_work(round_number: int) -> None:
    async def scenario() -> None:
        work = Work()
        server, address = await serve(cancelled_with_call(work))
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_stream(METHOD)(b"")
            await call.read()
            while work.num_chunks < 20:  # far more than the client has taken
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait_for(work.stopped.wait(), SOON_S)
        await server.stop(None)

    asyncio.run(scenario())


def test_chunks_and_errors_pass_unchanged() -> None:
    async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield request
        context.set_code(grpc.StatusCode.OUT_OF_RANGE)  # as Serve does
        context.set_details("too far")

    async def scenario() -> None:
        server, address = await serve(cancelled_with_call(answer))
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_stream(METHOD)(b"two")
            assert [await call.read(), await call.read()] == [b"one", b"two"]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
            assert caught.value.details() == "too far"
        await server.stop(None)

    asyncio.run(scenario())


def test_what_the_handler_raises_ends_the_call() -> None:
    async def fail(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("broken")

    async def scenario() -> None:
        server, address = await serve(cancelled_with_call(fail))
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_stream(METHOD)(b"")
            assert await call.read() == b"one"
            with pytest.raises(grpc.aio.AioRpcError, match="broken"):
                await call.read()
        await server.stop(None)

    asyncio.run(scenario())


def test_only_streaming_handlers_are_wrapped_and_the_factory_is_given_back() -> None:
    made: dict[tuple[str, gRPCStreamingType], Any] = {}

    def factory(service_method: str, streaming_type: gRPCStreamingType) -> Any:
        return made.setdefault((service_method, streaming_type), object())

    class Server(SimpleNamespace):
        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            kinds = (gRPCStreamingType.UNARY_UNARY, gRPCStreamingType.UNARY_STREAM)
            self.handlers = [self.service_handler_factory(METHOD, kind) for kind in kinds]

        def add_registered_method_handlers(self, *_: Any) -> None:
            pass

    server = Server(service_handler_factory=factory)
    servicer = SimpleNamespace(
        Generate=0, GenerateStream=0, Tokenize=0, Detokenize=0, GetModelInfo=0
    )
    add_generation_service(servicer, server)
    unary, stream = server.handlers
    assert unary is made[METHOD, gRPCStreamingType.UNARY_UNARY]
    assert stream is not made[METHOD, gRPCStreamingType.UNARY_STREAM]
    assert server.service_handler_factory is factory
