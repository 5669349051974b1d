"""Real servers on free ports around the app and the service, inside the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import uvicorn

from specdist.api.backend import Backend
from specdist.api.grpc_server import SERVER_OPTIONS, add_to_plain_server
from specdist.api.grpc_service import GenerationService
from specdist.api.model_card import ModelCard
from specdist.api.openai import build_http_app


@asynccontextmanager
async def http_server(backend: Backend, card: ModelCard) -> AsyncIterator[str]:
    """The address of a uvicorn server of the app."""
    config = uvicorn.Config(
        build_http_app(backend, card), host="127.0.0.1", port=0, log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def grpc_server(backend: Backend, card: ModelCard) -> AsyncIterator[str]:
    """The address of a plain gRPC server of the service."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_to_plain_server(server, GenerationService(backend, card))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
