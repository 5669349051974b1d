"""The HTTP application: OpenAI's text endpoints, models, health, metrics, the page.

``build_http_app`` makes it from any backend. Every failure is an OpenAI error object;
errors before the first token have their own status, later ones become an error event
that ends the stream. Served by ``deployments.router`` behind Ray Serve, or by any ASGI
server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from specdist.api import error_map, fields
from specdist.api.answer import TextDelta, text_deltas
from specdist.api.backend import Backend
from specdist.api.event_stream import DONE, EventStream, dump, event, unless_gone
from specdist.api.merge import merge
from specdist.api.model_card import ModelCard
from specdist.api.openai_answers import GatheredAnswer, OpenAIAnswer
from specdist.api.openai_requests import OpenAIRequest, read_chat, read_completion
from specdist.api.page import Page
from specdist.errors import InvalidRequestError, ModelNotFoundError, UnavailableError

MAX_BODY_BYTES = 64 << 20
THREAD_FROM_BYTES = 16 << 10  # larger bodies are tokenized off the event loop
STRUCTURE = {"response_format", "structured_outputs"}  # compiled off the event loop
CLIENT_CLOSED = 499  # nobody reads it; it stands in access logs
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Endpoint = Callable[[Request], Awaitable[Response]]
Reader = Callable[[ModelCard, Any, str | None], OpenAIRequest]


def build_http_app(backend: Backend, model: ModelCard) -> Starlette:
    """The whole HTTP side of the application as an ASGI app."""
    routes = _Routes(backend, model)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", _guarded(routes.chat), methods=["POST"]),
            Route("/v1/completions", _guarded(routes.completions), methods=["POST"]),
            Route("/v1/models", _guarded(routes.models), methods=["GET"]),
            Route("/v1/models/{name:path}", _guarded(routes.model), methods=["GET"]),
            Route("/health", _guarded(routes.health), methods=["GET"]),
            Route("/metrics", _guarded(routes.metrics), methods=["GET"]),
            Route("/", _guarded(routes.page), methods=["GET"]),
            Route("/static/{version}/{name}", _guarded(routes.page_file), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_endpoint},
    )


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(dump(value), status, headers, media_type="application/json")


def error_response(error: BaseException, request_id: str = "") -> Response:
    """Any error as OpenAI's error object."""
    known = error_map.known_error(error, request_id)
    headers = error_map.http_headers(known)
    return json_response(error_map.error_object(known), known.http_status, headers)


def _guarded(endpoint: Endpoint) -> Endpoint:
    """The boundary of the process: whatever an endpoint raises becomes an answer."""

    async def run(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            return error_response(error, request.headers.get("x-request-id", ""))

    return run


async def _no_such_endpoint(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    what = f"{request.method} {request.url.path}"
    if status == 405:
        message = f"{what}: the method must be one of {headers.get('Allow', '')}"
        known = InvalidRequestError(message, code="method_not_allowed")
    else:
        known = InvalidRequestError(f"there is no endpoint {what}", code="unknown_url")
    return json_response(error_map.error_object(known), status, headers)


class _Routes:
    """The endpoints over one backend and one model."""

    def __init__(self, backend: Backend, card: ModelCard) -> None:
        self._backend = backend
        self._card = card
        self._page = Page(card)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, read_chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, read_completion)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model_body()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._card.name:
            raise ModelNotFoundError(
                f"model must be {fields.shown(self._card.name)}, got {fields.shown(name)}",
                param="model",
                code="model_not_found",
            )
        return json_response(self._model_body())

    async def health(self, request: Request) -> Response:
        report = await self._backend.health()
        if not report.ready:
            raise UnavailableError(report.message or "no target is running", code="not_ready")
        body = {
            "status": "ok",
            "message": report.message,
            "num_targets": report.num_targets,
            "num_drafts": report.num_drafts,
        }
        return json_response(body)

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(await self._backend.metrics_text(), media_type=PROMETHEUS_TEXT)

    async def page(self, request: Request) -> Response:
        return self._page.index(request)

    async def page_file(self, request: Request) -> Response:
        found = self._page.file(request)
        return found or await _no_such_endpoint(request, HTTPException(404))

    def _model_body(self) -> dict[str, Any]:
        return {
            "id": self._card.name,
            "object": "model",
            "created": self._card.created,
            "owned_by": "specdist",
            "max_model_len": self._card.max_model_len,
        }

    async def _generate(self, request: Request, read: Reader) -> Response:
        raw = await _read_body(request)
        asked = await self._parse(raw, request.headers.get("x-request-id"), read)
        headers = {"X-Request-Id": asked.request_id}
        answer = OpenAIAnswer(asked, self._card)
        deltas = merge([text_deltas(self._backend, a, self._card) for a in asked.answers])
        if not asked.stream:
            body = await unless_gone(request.receive, _gather(asked, answer, deltas))
            return json_response(body, headers=headers)
        # The first delta comes before the status line: its errors have their own status.
        first = await unless_gone(request.receive, anext(deltas))
        return EventStream(_events(asked, answer, first, deltas), headers)

    async def _parse(self, raw: bytes, request_id: str | None, read: Reader) -> OpenAIRequest:
        if len(raw) >= THREAD_FROM_BYTES:
            return await asyncio.to_thread(lambda: read(self._card, _load(raw), request_id))
        body = _load(raw)  # JSON may spell a name in many ways: only then is it known
        if isinstance(body, dict) and not STRUCTURE.isdisjoint(body):
            return await asyncio.to_thread(read, self._card, body, request_id)
        return read(self._card, body, request_id)


async def _gather(
    asked: OpenAIRequest,
    answer: OpenAIAnswer,
    deltas: AsyncGenerator[tuple[int, TextDelta], None],
) -> dict[str, Any]:
    gathered = [GatheredAnswer() for _ in asked.answers]
    async with aclosing(deltas):
        async for index, delta in deltas:
            gathered[index].add(delta)
    return answer.whole(gathered)


async def _events(
    asked: OpenAIRequest,
    answer: OpenAIAnswer,
    first: tuple[int, TextDelta],
    deltas: AsyncGenerator[tuple[int, TextDelta], None],
) -> AsyncGenerator[bytes, None]:
    """The whole stream; an error ends it with an error event and without [DONE]."""
    totals: dict[int, Any] = {}
    async with aclosing(deltas):
        for opening in answer.first_chunks():
            yield event(opening)
        item: tuple[int, TextDelta] | None = first
        while item is not None:
            index, delta = item
            if (chunk := answer.chunk(index, delta)) is not None:
                yield event(chunk)
            if delta.totals is not None:
                totals[index] = delta.totals
            try:
                item = await anext(deltas, None)
            except Exception as error:  # the status line is gone: say it in the stream
                known = error_map.known_error(error, asked.request_id)
                yield event(error_map.error_object(known))
                return
    last = answer.last_chunk([totals[i] for i in sorted(totals)])
    if last is not None:
        yield event(last)
    yield DONE


async def _read_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise InvalidRequestError(
                f"the body must have at most {MAX_BODY_BYTES} bytes, got at least {size}",
                code="request_too_large",
            )
    return b"".join(parts)


def _load(raw: bytes) -> Any:
    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(raw, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the body must be a JSON object: {error}", code="invalid_json"
        ) from None
