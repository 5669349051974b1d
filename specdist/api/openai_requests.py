"""Bodies of the two OpenAI endpoints -> prepared requests; refuses what it would ignore.

Knows which fields each endpoint has and which of OpenAI's are not supported here (they
pass only with the value that asks for nothing). Called by ``specdist.api.openai``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdist.api import fields, validation
from specdist.api.chat_messages import read_messages
from specdist.api.model_card import ModelCard
from specdist.api.structured import read_structured
from specdist.api.validation import PreparedRequest
from specdist.errors import InvalidRequestError
from specdist.protocol.request import GenerationRequest, StructuredOutput

MAX_PROMPTS = 256  # in one request
DEFAULT_COMPLETION_TOKENS = 16  # what OpenAI's completions endpoint documents

_COMMON = (
    *("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("stop_token_ids", "stream", "stream_options", "logit_bias", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "user"),
    *("skip_special_tokens", "speculation", "logprobs", "response_format", "structured_outputs"),
)
CHAT_FIELDS = (*_COMMON, "messages", "max_completion_tokens", "top_logprobs")
COMPLETION_FIELDS = (*_COMMON, "prompt")

# Known to OpenAI or vLLM but not supported here: the values that ask for nothing pass.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "parallel_tool_calls": (),
    "prompt_logprobs": (),
    "modalities": (["text"],),
    "audio": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "metadata": ({},),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
}


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """One HTTP request: as many answers as it has prompts."""

    request_id: str
    answers: tuple[PreparedRequest, ...]
    is_chat: bool
    stream: bool = False
    include_usage: bool = False

    @property
    def num_logprobs(self) -> int | None:
        """None: none asked for; the same for every answer."""
        return self.answers[0].generation.num_logprobs


def read_chat(card: ModelCard, body: Any, request_id: str | None = None) -> OpenAIRequest:
    """Check the body of /v1/chat/completions; raises InvalidRequestError."""
    values = _read_body(card, body, CHAT_FIELDS)
    messages = read_messages(values.get("messages"))
    prompt = validation.encode_chat(card, messages, "messages")
    limit = validation.read_max_tokens(values)
    num_logprobs = _chat_logprobs(values)
    public_id = validation.request_id(request_id, "chatcmpl")
    return _request(card, values, [prompt], "messages", limit, num_logprobs, public_id)


def read_completion(card: ModelCard, body: Any, request_id: str | None = None) -> OpenAIRequest:
    """Check the body of /v1/completions; raises InvalidRequestError."""
    values = _read_body(card, body, COMPLETION_FIELDS)
    prompts = _read_prompts(card, values.get("prompt"))
    limit = validation.read_max_tokens(values)
    if limit is None and card.default_max_tokens is None:
        limit = max(DEFAULT_COMPLETION_TOKENS, fields.integer(values, "min_tokens", 0) or 0)
    num_logprobs = fields.integer(values, "logprobs", 0, validation.MAX_LOGPROBS)
    public_id = validation.request_id(request_id, "cmpl")
    return _request(card, values, prompts, "prompt", limit, num_logprobs, public_id)


def _read_body(card: ModelCard, body: Any, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise InvalidRequestError(f"the body must be a JSON object, got {fields.shown(body)}")
    for name, neutral in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not _is_one_of(value, neutral):
            raise InvalidRequestError(
                f"{name} is not supported{_but(neutral)}, got {fields.shown(value)}",
                param=name,
                code="unsupported_parameter",
            )
    fields.check_known(body, (*known, *UNSUPPORTED))
    validation.check_model(fields.string(body, "model"), card)
    fields.string(body, "user")
    return body


def _is_one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """Equal in kind too: true is not 1."""
    return any(type(value) is type(a) and value == a for a in allowed)


def _but(neutral: Sequence[Any]) -> str:
    return f" (other than {' or '.join(fields.shown(v) for v in neutral)})" if neutral else ""


def _request(
    card: ModelCard,
    values: Mapping[str, Any],
    prompts: Sequence[tuple[int, ...]],
    param: str,
    max_tokens: int | None,
    num_logprobs: int | None,
    request_id: str,
) -> OpenAIRequest:
    stream = fields.boolean(values, "stream") or False
    form = read_structured(card, values)
    answers = [
        _prepare(card, values, prompt, param, max_tokens, num_logprobs, request_id, form)
        for prompt in prompts
    ]
    return OpenAIRequest(
        request_id=request_id,
        answers=tuple(answers),
        is_chat=param == "messages",
        stream=stream,
        include_usage=_include_usage(values, stream),
    )


def _prepare(
    card: ModelCard,
    values: Mapping[str, Any],
    prompt: tuple[int, ...],
    param: str,
    max_tokens: int | None,
    num_logprobs: int | None,
    request_id: str,
    form: StructuredOutput | None,
) -> PreparedRequest:
    validation.check_prompt_length(card, prompt, param)
    room = card.max_model_len - len(prompt)
    generation = GenerationRequest(
        request_id=validation.backend_id(request_id),
        prompt_token_ids=prompt,
        sampling=validation.read_sampling(card, values, room, max_tokens, structured_output=form),
        speculation=validation.read_speculation(card, values.get("speculation")),
        num_logprobs=num_logprobs,
    )
    shows_special = fields.boolean(values, "skip_special_tokens") is False
    stops = validation.read_stops(values)
    return PreparedRequest(request_id, generation, stops, not shows_special)


def _include_usage(values: Mapping[str, Any], stream: bool) -> bool:
    options = values.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise InvalidRequestError(
            "stream_options must be absent unless stream is true", param="stream_options"
        )
    options = fields.mapping(options, "stream_options")
    fields.check_known(options, ("include_usage", "include_obfuscation"), "stream_options.")
    if fields.boolean(options, "include_obfuscation", "stream_options."):
        raise InvalidRequestError(
            "stream_options.include_obfuscation is not supported",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    return fields.boolean(options, "include_usage", "stream_options.") or False


def _chat_logprobs(values: Mapping[str, Any]) -> int | None:
    wanted = fields.boolean(values, "logprobs")
    top = fields.integer(values, "top_logprobs", 0, validation.MAX_LOGPROBS)
    if top is not None and not wanted:
        raise InvalidRequestError(
            f"top_logprobs must be absent unless logprobs is true, got {top}", param="top_logprobs"
        )
    return (top or 0) if wanted else None


def _read_prompts(card: ModelCard, prompt: Any) -> list[tuple[int, ...]]:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    expected = "a string, a list of strings, token ids or a list of lists of token ids"
    if isinstance(prompt, str):
        return [validation.encode_prompt(card, prompt, "prompt")]
    if not isinstance(prompt, list) or not prompt:
        raise fields.refuse("prompt", f"{expected} (not empty)", prompt)
    if all(fields.is_integer(p) for p in prompt):
        return [validation.check_token_ids(card, prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt must hold at most {MAX_PROMPTS} prompts, got {len(prompt)}", param="prompt"
        )
    if all(isinstance(p, str) for p in prompt):
        return [validation.encode_prompt(card, p, f"prompt[{i}]") for i, p in enumerate(prompt)]
    if all(isinstance(p, list) for p in prompt):
        return [validation.check_token_ids(card, p, f"prompt[{i}]") for i, p in enumerate(prompt)]
    raise fields.refuse("prompt", expected, prompt)
