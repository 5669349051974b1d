"""Checks what a client asks for and resolves every default: plain data -> protocol.

The rules are the same for HTTP and gRPC; only where the fields stand differs (``where``
is the prefix for error messages). Context rule: a prompt must leave room for one token,
and ``max_tokens`` beyond the room is cut to it (the answer then ends with "length").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from specdist.api import fields
from specdist.api.model_card import ModelCard
from specdist.config import RULES
from specdist.errors import InvalidRequestError, ModelNotFoundError
from specdist.protocol.request import (
    GenerationRequest,
    SamplingParams,
    SpeculationParams,
    StructuredOutput,
)

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096
SEED_LIMITS = (-(2**63), 2**63 - 1)
SPECULATION_FIELDS = ("enabled", "max_tokens", "rule")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One answer to generate: what the backend gets, and what stays on the text side."""

    request_id: str  # the one the client sees; the backend's own is unique
    generation: GenerationRequest
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True


def check_model(name: str | None, card: ModelCard) -> None:
    """Refuse any name but the served one; no name means the served model."""
    if name is not None and name != card.name:
        raise ModelNotFoundError(
            f"model must be {fields.shown(card.name)}, got {fields.shown(name)}",
            param="model",
            code="model_not_found",
        )


def request_id(given: str | None, prefix: str) -> str:
    """The client's own id, or a new one."""
    if not given:
        return f"{prefix}-{uuid4().hex}"
    if not _REQUEST_ID.fullmatch(given):
        raise fields.refuse("request_id", "1 to 128 printable ASCII characters", given)
    return given


def backend_id(public_id: str) -> str:
    """An id that no other answer has, even when two clients choose the same public one."""
    return f"{public_id}-{uuid4().hex[:12]}"


def encode_prompt(card: ModelCard, text: str, param: str) -> tuple[int, ...]:
    """Token ids of a prompt; a text that cannot fit is refused without tokenizing it."""
    fields.check_text(text, param)
    fewest = card.tokenizer.fewest_tokens(text)
    if fewest >= card.max_model_len:
        raise _too_long(card, f"at least {fewest}", param)
    return tuple(card.tokenizer.encode(text))


def encode_chat(
    card: ModelCard, messages: Sequence[Mapping[str, Any]], param: str
) -> tuple[int, ...]:
    """Token ids of a conversation up to the assistant's turn."""
    fewest = sum(card.tokenizer.fewest_tokens(m["content"]) for m in messages)
    if fewest >= card.max_model_len:
        raise _too_long(card, f"at least {fewest}", param)
    return tuple(card.tokenizer.encode_chat(messages))


def check_token_ids(card: ModelCard, values: Any, param: str) -> tuple[int, ...]:
    """A prompt that comes as token ids."""
    return tuple(fields.token_id(v, f"{param}[{i}]", card.vocab_size) for i, v in enumerate(values))


def check_prompt_length(card: ModelCard, prompt: Sequence[int], param: str) -> None:
    """A prompt has at least one token and leaves room for at least one more."""
    if not prompt:
        raise InvalidRequestError(f"{param} must hold at least one token, got none", param=param)
    if len(prompt) >= card.max_model_len:
        raise _too_long(card, str(len(prompt)), param)


def _too_long(card: ModelCard, count: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param} must have at most {card.max_model_len - 1} tokens (the context of "
        f"{card.max_model_len}, less one for the answer), got {count}",
        param=param,
        code="context_length_exceeded",
    )


def read_sampling(
    card: ModelCard,
    values: Mapping[str, Any],
    room: int,
    max_tokens: int | None,
    where: str = "",
    structured_output: StructuredOutput | None = None,
) -> SamplingParams:
    """Check the sampling fields; ``room`` is what the context leaves for the answer."""
    min_tokens = fields.integer(values, "min_tokens", 0, where=where) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.refuse(f"{where}min_tokens", f"at most max_tokens, {max_tokens}", min_tokens)
    temperature = fields.number(values, "temperature", 0, 2, where=where)
    top_p, top_k = _read_truncation(card, values, where)
    penalty = fields.number(values, "repetition_penalty", 0, 100, above=True, where=where)
    return SamplingParams(
        max_tokens=min(max_tokens or card.default_max_tokens or room, room),
        temperature=1.0 if temperature is None else temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=fields.number(values, "min_p", 0, 1, where=where) or 0.0,
        seed=fields.integer(values, "seed", *SEED_LIMITS, where=where),
        presence_penalty=fields.number(values, "presence_penalty", -2, 2, where=where) or 0.0,
        frequency_penalty=fields.number(values, "frequency_penalty", -2, 2, where=where) or 0.0,
        repetition_penalty=1.0 if penalty is None else penalty,
        min_tokens=min(min_tokens, room),
        ignore_eos=_read_ignore_eos(values, where, structured_output),
        stop_token_ids=_read_stop_ids(card, values, where),
        logit_bias=_read_bias(card, values, where),
        structured_output=structured_output,
    )


def _read_truncation(card: ModelCard, values: Mapping[str, Any], where: str) -> tuple[float, int]:
    top_p = fields.number(values, "top_p", 0, 1, where=where)
    top_k = fields.integer(values, "top_k", -1, where=where) or 0
    if top_p == 0:  # the smallest set of likeliest tokens is the likeliest one alone
        return 1.0, 1
    top_k = 0 if top_k >= card.vocab_size else max(top_k, 0)  # -1 is vLLM's word for off
    return 1.0 if top_p is None else top_p, top_k


def _read_ignore_eos(
    values: Mapping[str, Any], where: str, structured_output: StructuredOutput | None
) -> bool:
    ignored = fields.boolean(values, "ignore_eos", where) or False
    if ignored and structured_output is not None:
        raise fields.refuse(
            f"{where}ignore_eos", "false where the answer has a form: its end is part of it", True
        )
    return ignored


def read_max_tokens(values: Mapping[str, Any], where: str = "") -> int | None:
    """The given limit, under whichever of its two names."""
    old = fields.integer(values, "max_tokens", 1, where=where)
    new = fields.integer(values, "max_completion_tokens", 1, where=where)
    if old is not None and new is not None and old != new:
        raise fields.refuse(f"{where}max_tokens", f"max_completion_tokens, {new}", old)
    return old if new is None else new


def _read_stop_ids(card: ModelCard, values: Mapping[str, Any], where: str) -> tuple[int, ...]:
    ids = values.get("stop_token_ids")
    if ids is None:
        return ()
    name = f"{where}stop_token_ids"
    if not isinstance(ids, (list, tuple)):
        raise fields.refuse(name, "a list of token ids", ids)
    return check_token_ids(card, ids, name)


def _read_bias(
    card: ModelCard, values: Mapping[str, Any], where: str
) -> tuple[tuple[int, float], ...]:
    bias = values.get("logit_bias")
    if bias is None:
        return ()
    name = f"{where}logit_bias"
    bias = fields.mapping(bias, name)
    if len(bias) > MAX_BIASED_TOKENS:
        raise InvalidRequestError(
            f"{name} must have at most {MAX_BIASED_TOKENS} entries, got {len(bias)}", param=name
        )
    pairs: dict[int, float] = {}
    for key, value in bias.items():
        is_id = fields.is_integer(key) or (isinstance(key, str) and re.fullmatch("[0-9]{1,9}", key))
        token_id = fields.token_id(int(key) if is_id else key, name, card.vocab_size)
        bound = fields.number({"": value}, "", -100, 100, where=f"{name}[{token_id}]")
        pairs[token_id] = 0.0 if bound is None else bound
    return tuple(pairs.items())


def read_stops(values: Mapping[str, Any], where: str = "") -> tuple[str, ...]:
    """Stop strings: one, or a list of up to 16."""
    stops = values.get("stop")
    if stops is None:
        return ()
    name = f"{where}stop"
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, (list, tuple)):
        raise fields.refuse(name, "a string or a list of strings", stops)
    if len(stops) > MAX_STOPS:
        raise fields.refuse(name, f"at most {MAX_STOPS} strings", stops)
    for i, stop in enumerate(stops):
        length = len(fields.check_text(stop, f"{name}[{i}]"))
        if not 0 < length <= MAX_STOP_CHARS:
            raise fields.refuse(f"{name}[{i}]", f"1 to {MAX_STOP_CHARS} characters long", stop)
    return tuple(dict.fromkeys(stops))


def read_speculation(card: ModelCard, values: Any) -> SpeculationParams:
    """What the client says about speculation; a longest path of 0 turns it off."""
    if values is None:
        return SpeculationParams()
    where = "speculation."
    values = fields.mapping(values, "speculation")
    fields.check_known(values, SPECULATION_FIELDS, where)
    enabled = fields.boolean(values, "enabled", where)
    max_tokens = fields.integer(values, "max_tokens", 0, where=where)
    rule = fields.string(values, "rule", where)
    if rule is not None and rule not in card.allowed_rules:
        known = ", ".join(card.allowed_rules)
        lossy = " (lossy rules are not allowed here)" if rule in RULES else ""
        raise fields.refuse("speculation.rule", f"one of {known}{lossy}", rule)
    if max_tokens == 0:
        return SpeculationParams(enabled=False, rule=rule)
    return SpeculationParams(enabled is not False, max_tokens, rule)
