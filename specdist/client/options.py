"""The arguments of the client's calls -> request messages and call metadata.

Values are checked by the service, which names what is wrong; here only what no message
can carry is refused. Used by both clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from specdist.api.generated import specdist_pb2 as pb
from specdist.errors import InvalidRequestError

Message: TypeAlias = Mapping[str, str]  # {"role": ..., "content": ...}
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text, token ids or a chat

MAX_MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),  # the client does its own, only before an answer begins
)
DEFAULT_APPLICATION = "specdist"  # the application's name in serve_config.yaml


class Options(TypedDict, total=False):
    """What a generating call may say; everything has a default on the service's side."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    min_tokens: int | None
    ignore_eos: bool | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    logit_bias: Mapping[int, float] | None
    structured_outputs: Mapping[str, Any] | None  # one of json, json_object, regex, choice
    logprobs: int | None  # how many of the likeliest tokens to report, 1 to 20
    speculation: Mapping[str, Any] | None  # enabled, max_tokens, rule
    model: str | None
    request_id: str | None
    timeout_s: float | None  # overrides the client's own


_OWN = ("logprobs", "speculation", "model", "request_id", "timeout_s")
_SAMPLING = tuple(name for name in Options.__annotations__ if name not in _OWN)


def generate_request(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """The message for one prompt, text, token ids or chat."""
    for name in options:
        if name not in Options.__annotations__:
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"unknown option {name!r}; known: {known}")
    sampling = {name: options.get(name) for name in _SAMPLING}
    if isinstance(sampling["stop"], str):
        sampling["stop"] = [sampling["stop"]]
    if sampling["structured_outputs"] is not None:
        sampling["structured_outputs"] = _structured(sampling["structured_outputs"])
    values = {k: v for k, v in sampling.items() if v is not None}
    return pb.GenerateRequest(
        request_id=options.get("request_id") or "",
        sampling=_message(pb.SamplingParams, values, ""),
        speculation=_message(pb.SpeculationParams, options.get("speculation") or {}, "speculation"),
        logprobs=options.get("logprobs") or 0,
        model=options.get("model") or "",
        **_input(prompt),
    )


def _structured(form: Mapping[str, Any]) -> pb.StructuredOutputs:
    """A schema may come as a mapping; the message carries its text."""
    values = dict(form)
    if isinstance(values.get("json"), Mapping):
        values["json"] = json.dumps(values["json"])
    return _message(pb.StructuredOutputs, values, "structured_outputs")


def tokenize_request(prompt: str | Sequence[Message]) -> pb.TokenizeRequest:
    """The message for a text or a chat."""
    return pb.TokenizeRequest(**_input(prompt))


def _input(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    items = list(prompt)
    if items and isinstance(items[0], Mapping):
        messages = [_message(pb.ChatMessage, m, f"messages[{i}]") for i, m in enumerate(items)]
        return {"chat": pb.ChatMessages(messages=messages)}
    return {"token_ids": _message(pb.TokenIds, {"ids": items}, "prompt")}


def _message(kind: Any, values: Any, name: str) -> Any:
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # a wrong type, a negative number, another field
        where = f"{name}: " if name else ""
        raise InvalidRequestError(f"{where}{error}", param=name or None) from None


def call_metadata(
    application: str, timeout_s: float | None, request_id: str | None
) -> tuple[tuple[str, str], ...]:
    """What travels beside the message: the deadline is not visible behind Ray Serve."""
    metadata = [("application", application)]
    if timeout_s is not None:
        metadata.append(("x-timeout-s", f"{timeout_s:.6f}"))
    if request_id:
        metadata.append(("x-request-id", request_id))
    return tuple(metadata)
