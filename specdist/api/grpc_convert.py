"""Between the messages of proto/specdist.proto and the API's own records.

The checks are those of HTTP (``specdist.api.validation``); only the field names in the
errors differ. Called by ``specdist.api.grpc_service``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdist.api import fields, validation
from specdist.api.accounting import AnswerTotals, Usage
from specdist.api.answer import TextDelta
from specdist.api.chat_messages import read_messages
from specdist.api.generated import specdist_pb2 as pb
from specdist.api.model_card import ModelCard
from specdist.api.structured import read_structured
from specdist.api.token_text import ShownToken, show_chosen, show_top
from specdist.api.validation import PreparedRequest
from specdist.errors import InvalidRequestError
from specdist.protocol.request import GenerationRequest
from specdist.protocol.verdict import TokenLogprobs

SAMPLING = "sampling."


def prepare(
    card: ModelCard, request: pb.GenerateRequest, timeout_s: float | None, request_id: str | None
) -> PreparedRequest:
    """Check a GenerateRequest and resolve its defaults; raises InvalidRequestError."""
    validation.check_model(request.model or None, card)
    public_id = validation.request_id(request.request_id or request_id, "gen")
    prompt, param = _read_input(card, request)
    validation.check_prompt_length(card, prompt, param)
    values = _set_fields(request.sampling)
    limit = validation.read_max_tokens(values, SAMPLING)
    room = card.max_model_len - len(prompt)
    form = read_structured(card, values, SAMPLING)
    generation = GenerationRequest(
        request_id=validation.backend_id(public_id),
        prompt_token_ids=prompt,
        sampling=validation.read_sampling(card, values, room, limit, SAMPLING, form),
        speculation=validation.read_speculation(card, _set_fields(request.speculation)),
        num_logprobs=_num_logprobs(request),
        timeout_s=timeout_s,
    )
    return PreparedRequest(public_id, generation, validation.read_stops(values, SAMPLING))


def _set_fields(message: Any) -> dict[str, Any]:
    """The fields that the client has set, as plain data."""
    values = {}
    for descriptor, value in message.ListFields():
        kind = descriptor.message_type
        if kind is not None and kind.GetOptions().map_entry:
            values[descriptor.name] = dict(value)
        elif kind is not None:
            values[descriptor.name] = _set_fields(value)
        elif descriptor.is_repeated:
            values[descriptor.name] = list(value)
        else:
            values[descriptor.name] = value
    return values


def _num_logprobs(request: pb.GenerateRequest) -> int | None:
    asked = fields.integer({"logprobs": request.logprobs}, "logprobs", 0, validation.MAX_LOGPROBS)
    return asked or None


def _read_input(card: ModelCard, request: pb.GenerateRequest) -> tuple[tuple[int, ...], str]:
    match request.WhichOneof("input"):
        case "token_ids":
            ids = validation.check_token_ids(card, request.token_ids.ids, "token_ids.ids")
            return ids, "token_ids"
        case "prompt" | "chat" as kind:
            return read_text_input(card, request), kind
        case _:
            raise InvalidRequestError(
                "input must be one of prompt, chat, token_ids, got none", param="input"
            )


def read_text_input(
    card: ModelCard, request: pb.GenerateRequest | pb.TokenizeRequest
) -> tuple[int, ...]:
    """Token ids of the prompt or chat of a request."""
    match request.WhichOneof("input"):
        case "prompt":
            return validation.encode_prompt(card, request.prompt, "prompt")
        case "chat":
            plain = [{"role": m.role, "content": m.content} for m in request.chat.messages]
            messages = read_messages(plain, "chat.messages")
            return validation.encode_chat(card, messages, "chat.messages")
        case _:
            raise InvalidRequestError("input must be prompt or chat, got none", param="input")


def chunk_message(card: ModelCard, request: PreparedRequest, delta: TextDelta) -> pb.GenerateChunk:
    """One text delta as a stream message."""
    chunk = pb.GenerateChunk(
        request_id=request.request_id,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=_logprobs(card, request, delta.logprobs),
        num_draft_tokens_accepted=delta.num_accepted,
    )
    if delta.finish_reason is not None and delta.totals is not None:
        chunk.finish_reason = delta.finish_reason
        chunk.usage.CopyFrom(_usage(delta.totals.usage))
        chunk.speculation.CopyFrom(_stats(delta.totals))
        chunk.seed = delta.totals.seed
    return chunk


def response_message(
    card: ModelCard, request: PreparedRequest, deltas: Sequence[TextDelta]
) -> pb.GenerateResponse:
    """All text deltas of one answer as a single message."""
    response = pb.GenerateResponse(
        request_id=request.request_id,
        text="".join(d.text for d in deltas),
        token_ids=[i for d in deltas for i in d.token_ids],
        logprobs=[entry for d in deltas for entry in _logprobs(card, request, d.logprobs)],
        finish_reason=deltas[-1].finish_reason,
        model=card.name,
    )
    totals = deltas[-1].totals
    if totals is not None:
        response.usage.CopyFrom(_usage(totals.usage))
        response.speculation.CopyFrom(_stats(totals))
        response.seed = totals.seed
    return response


def tokenize_message(card: ModelCard, token_ids: Sequence[int]) -> pb.TokenizeResponse:
    """Token ids with each token's own text."""
    texts = [card.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in token_ids]
    return pb.TokenizeResponse(token_ids=token_ids, tokens=texts, max_model_len=card.max_model_len)


def _logprobs(
    card: ModelCard, request: PreparedRequest, entries: Sequence[TokenLogprobs]
) -> list[pb.TokenLogprob]:
    num_logprobs = request.generation.num_logprobs
    if num_logprobs is None:
        return []
    return [
        pb.TokenLogprob(
            **_token(show_chosen(card.tokenizer, entry)),
            top=[
                pb.TopLogprob(**_token(shown))
                for shown in show_top(card.tokenizer, entry, num_logprobs)
            ],
        )
        for entry in entries
    ]


def _token(shown: ShownToken) -> dict[str, Any]:
    return {
        "token_id": shown.token_id,
        "token": shown.text,
        "token_bytes": shown.data,
        "logprob": shown.logprob,
    }


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_tokens=usage.cached_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
    )


def _stats(totals: AnswerTotals) -> pb.SpeculationStats:
    summary = totals.summary
    return pb.SpeculationStats(
        rule=totals.rule,
        lossless=totals.lossless,
        num_steps=summary.num_steps,
        num_spec_steps=summary.num_spec_steps,
        num_draft_tokens=summary.num_draft_tokens,
        num_accepted_tokens=summary.num_accepted_tokens,
        num_stale_trees=summary.num_stale_trees,
        draft_acceptance_rate=summary.draft_acceptance_rate,
        mean_acceptance_length=summary.mean_acceptance_length,
        draft_token_share=summary.draft_token_share,
        acceptance_histogram=summary.acceptance_histogram,
    )
