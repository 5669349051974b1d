"""The gRPC service without a gRPC server: what each call does, errors as SpecdistError.

``deployments.router`` puts it behind Ray Serve's gRPC proxy and maps errors with
``error_map.grpc_error``; ``specdist.api.grpc_server`` puts it on a plain server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from specdist import __version__
from specdist.api import grpc_convert, validation
from specdist.api.answer import text_deltas
from specdist.api.backend import Backend
from specdist.api.error_map import grpc_error
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.model_card import ModelCard
from specdist.api.validation import PreparedRequest
from specdist.errors import DeadlineError, InvalidRequestError

__all__ = ["GenerationService", "grpc_error", "read_timeout"]

THREAD_FROM_BYTES = 16 << 10

T = TypeVar("T")


def read_timeout(value: str | None) -> float | None:
    """The metadata entry ``x-timeout-s``: seconds that the client still waits."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidRequestError(
            f"x-timeout-s must be a number of seconds, got {value!r}", param="x-timeout-s"
        )
    return seconds


class GenerationService:
    """The five calls; ``timeout_s`` and ``request_id`` come from the call's metadata."""

    def __init__(self, backend: Backend, model: ModelCard) -> None:
        self._backend = backend
        self._card = model

    async def generate(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> pb.GenerateResponse:
        """The whole answer; cancelling the call cancels the request."""
        prepared = await self._prepare(request, timeout_s, request_id)
        async with aclosing(text_deltas(self._backend, prepared, self._card)) as deltas:
            collected = [delta async for delta in deltas]
        return grpc_convert.response_message(self._card, prepared, collected)

    async def generate_stream(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The answer step by step; closing the generator cancels the request."""
        prepared = await self._prepare(request, timeout_s, request_id)
        async with aclosing(text_deltas(self._backend, prepared, self._card)) as deltas:
            async for delta in deltas:
                yield grpc_convert.chunk_message(self._card, prepared, delta)

    async def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Token ids of a prompt or chat."""
        validation.check_model(request.model or None, self._card)
        ids = await _aside(request, grpc_convert.read_text_input, self._card, request)
        return grpc_convert.tokenize_message(self._card, ids)

    async def detokenize(self, request: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
        """The text of token ids."""
        validation.check_model(request.model or None, self._card)
        ids = validation.check_token_ids(self._card, request.token_ids, "token_ids")
        skip = not request.HasField("skip_special_tokens") or request.skip_special_tokens
        text = self._card.tokenizer.decode(ids, skip_special_tokens=skip)
        return pb.DetokenizeResponse(text=text)

    async def get_model_info(self, request: pb.GetModelInfoRequest) -> pb.GetModelInfoResponse:
        """What is served, within which limits, and whether it is ready."""
        card = self._card
        validation.check_model(request.model or None, card)
        report = await self._backend.health()
        return pb.GetModelInfoResponse(
            model=card.name,
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            eos_token_ids=sorted(card.eos_token_ids),
            has_chat_template=card.tokenizer.chat_template.exists,
            rules=card.allowed_rules,
            default_rule=card.rules.default,
            created=card.created,
            ready=report.ready,
            version=__version__,
        )

    async def _prepare(
        self, request: pb.GenerateRequest, timeout_s: float | None, request_id: str | None
    ) -> PreparedRequest:
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineError(f"the deadline had passed on arrival ({timeout_s:g} s left)")
        prepare = grpc_convert.prepare
        return await _aside(request, prepare, self._card, request, timeout_s, request_id)


def _may_take_long(request: Any) -> bool:
    """Large texts are tokenized, and grammars compiled, off the event loop."""
    if request.ByteSize() >= THREAD_FROM_BYTES:
        return True
    is_generation = isinstance(request, pb.GenerateRequest)
    return is_generation and request.sampling.HasField("structured_outputs")


async def _aside(request: Any, work: Callable[..., T], *arguments: Any) -> T:
    """Run ``work`` here, or in a thread when it may take long."""
    if not _may_take_long(request):
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
