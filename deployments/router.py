"""One router replica: the HTTP and gRPC entrance over the request pipeline.

A plain class; ``deployments.app`` makes the ingress deployment ``Router`` of it. HTTP is
the ASGI app of ``specdist.api.openai``, gRPC the service of ``specdist.api.grpc_service``
behind Serve's proxy. A client that goes away cancels the call, and the call the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from ray import serve
from ray.serve.grpc_util import RayServegRPCContext
from ray.serve.handle import DeploymentHandle

from deployments.gauges import record_stats
from deployments.links import DraftLink, Link, TargetLink
from deployments.metrics_hub import MetricsPusher
from deployments.replica import as_config
from specdist.api.error_map import grpc_error
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.grpc_service import GenerationService, read_timeout
from specdist.api.model_card import ModelCard
from specdist.api.openai import build_http_app
from specdist.config import AppConfig
from specdist.metrics.recorder import Recorder
from specdist.models import resolve_model
from specdist.models.checkpoint import read_json
from specdist.protocol.answer import TokenDelta
from specdist.protocol.health import HealthReport
from specdist.protocol.request import GenerationRequest
from specdist.router.pipeline import Pipeline

T = TypeVar("T")


class ServeBackend:
    """``specdist.api.backend.Backend``: the pipeline, and the application's metrics."""

    def __init__(self, pipeline: Pipeline, pusher: MetricsPusher, links: Sequence[Link]) -> None:
        self._pipeline = pipeline
        self._pusher = pusher
        self._links = links

    def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Yield what each step committed."""
        return self._pipeline.generate(request)

    async def health(self) -> HealthReport:
        """Say whether a request would be served now."""
        return await self._pipeline.health()

    async def metrics_text(self) -> str:
        """Prometheus text of the whole application, counted up to now."""
        await asyncio.gather(*(link.flush_metrics() for link in self._links))
        return await asyncio.to_thread(self._pusher.render)


class Router:
    """Takes requests from clients and drives their conversation between the models."""

    def __init__(
        self,
        settings: AppConfig | Mapping[str, Any],
        targets: DeploymentHandle,
        drafts: DeploymentHandle,
    ) -> None:
        config = as_config(settings)
        context = serve.get_replica_context()
        router_id = context.replica_id.unique_id
        recorder = Recorder(source=f"Router:{router_id}")
        self._card = load_card(config)
        target, draft = TargetLink(targets, router_id), DraftLink(drafts, router_id)
        pipeline = Pipeline(config, target, draft, recorder, self._card.max_model_len)
        pusher = MetricsPusher(
            recorder,
            context.app_name,
            lambda: record_stats(recorder, "Router", pipeline.stats()),
        )
        pusher.start()
        self._backend = ServeBackend(pipeline, pusher, (target, draft))
        self._service = GenerationService(self._backend, self._card)

    def __serve_build_asgi_app__(self) -> Any:
        """Called by Serve once this object is built: the app that answers HTTP."""
        return build_http_app(self._backend, self._card)

    async def Generate(
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> pb.GenerateResponse:
        """The whole answer."""
        work = self._generate(request, grpc_context)
        return await _answer(work, grpc_context, pb.GenerateResponse())

    async def _generate(
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> pb.GenerateResponse:
        return await self._service.generate(request, **_call_arguments(grpc_context))

    async def GenerateStream(
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> AsyncIterator[pb.GenerateChunk]:
        """The answer step by step."""
        try:
            arguments = _call_arguments(grpc_context)
            async with aclosing(self._service.generate_stream(request, **arguments)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            _set_error(error, grpc_context)
            yield pb.GenerateChunk()  # carries status and trailing metadata to the proxy

    async def Tokenize(
        self, request: pb.TokenizeRequest, grpc_context: RayServegRPCContext
    ) -> pb.TokenizeResponse:
        """Token ids of a prompt or chat."""
        work = self._service.tokenize(request)
        return await _answer(work, grpc_context, pb.TokenizeResponse())

    async def Detokenize(
        self, request: pb.DetokenizeRequest, grpc_context: RayServegRPCContext
    ) -> pb.DetokenizeResponse:
        """The text of token ids."""
        work = self._service.detokenize(request)
        return await _answer(work, grpc_context, pb.DetokenizeResponse())

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, grpc_context: RayServegRPCContext
    ) -> pb.GetModelInfoResponse:
        """What is served, within which limits."""
        work = self._service.get_model_info(request)
        return await _answer(work, grpc_context, pb.GetModelInfoResponse())


def load_card(config: AppConfig) -> ModelCard:
    """What the API must know of the target's model; reads its tokenizer, not its weights."""
    folder = resolve_model(config.target.model)
    longest = int(read_json(folder / "config.json")["max_position_embeddings"])
    return ModelCard.load(
        folder,
        name=config.served_model_name,
        max_model_len=min(longest, config.target.max_model_len or longest),
        rules=config.rules,
        default_max_tokens=config.router.default_max_tokens,
    )


async def _answer(work: Awaitable[T], grpc_context: RayServegRPCContext, empty: T) -> T:
    """The answer; on an error an empty one, which carries status and trailing metadata.

    Serve keeps the status of a raised error, but loses the metadata and with it the hint
    when to try again.
    """
    try:
        return await work
    except Exception as error:
        _set_error(error, grpc_context)
        return empty


def _set_error(error: Exception, grpc_context: RayServegRPCContext) -> None:
    """Tell the proxy what to say: without a code clients would see a traceback."""
    code, details, metadata = grpc_error(error, _metadata(grpc_context).get("x-request-id", ""))
    grpc_context.set_code(code)
    grpc_context.set_details(details)
    grpc_context.set_trailing_metadata(list(metadata))


def _metadata(grpc_context: RayServegRPCContext) -> dict[str, str]:
    return {k: v for k, v in grpc_context.invocation_metadata() or () if isinstance(v, str)}


def _call_arguments(grpc_context: RayServegRPCContext) -> dict[str, Any]:
    """The deadline and the id that travel as metadata: Serve does not show the deadline."""
    metadata = _metadata(grpc_context)
    timeout_s = read_timeout(metadata.get("x-timeout-s"))
    return {"timeout_s": timeout_s, "request_id": metadata.get("x-request-id")}
