"""What the client's calls return: frozen records, read from the service's messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a position."""

    token_id: int
    token: str  # U+FFFD where its bytes are no whole character
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """An emitted token, its log probability and the likeliest tokens in its place."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...]  # best first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did for one request."""

    rule: str
    lossless: bool
    num_steps: int
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_stale_trees: int
    draft_acceptance_rate: float
    mean_acceptance_length: float
    draft_token_share: float
    acceptance_histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    usage: Usage
    speculation: SpeculationStats
    seed: int
    model: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer; the last one has a finish reason and what follows it."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    num_draft_tokens_accepted: int
    finish_reason: str | None = None
    usage: Usage | None = None
    speculation: SpeculationStats | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenized text."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    max_model_len: int

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, and within which limits."""

    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    rules: tuple[str, ...]
    default_rule: str
    created: int
    ready: bool
    version: str


def _plain(kind: Any, message: Any, **replaced: Any) -> Any:
    """Copy the fields of the same name; repeated ones become tuples."""
    values = {}
    for name in kind.__dataclass_fields__:
        value = replaced[name] if name in replaced else getattr(message, name)
        is_repeated = not isinstance(value, (str, bytes)) and isinstance(value, Iterable)
        values[name] = tuple(value) if is_repeated else value
    return kind(**values)


def _logprobs(messages: Any) -> tuple[TokenLogprob, ...]:
    return tuple(
        _plain(TokenLogprob, m, top=[_plain(TopLogprob, t) for t in m.top]) for m in messages
    )


def read_answer(message: Any) -> Answer:
    """A GenerateResponse."""
    answer: Answer = _plain(
        Answer,
        message,
        logprobs=_logprobs(message.logprobs),
        usage=_plain(Usage, message.usage),
        speculation=_plain(SpeculationStats, message.speculation),
    )
    return answer


def read_chunk(message: Any) -> Chunk:
    """A GenerateChunk."""
    is_last = bool(message.finish_reason)
    chunk: Chunk = _plain(
        Chunk,
        message,
        logprobs=_logprobs(message.logprobs),
        finish_reason=message.finish_reason or None,
        usage=_plain(Usage, message.usage) if is_last else None,
        speculation=_plain(SpeculationStats, message.speculation) if is_last else None,
        seed=message.seed if is_last else None,
    )
    return chunk


def read_tokens(message: Any) -> Tokens:
    """A TokenizeResponse."""
    tokens: Tokens = _plain(Tokens, message)
    return tokens


def read_model_info(message: Any) -> ModelInfo:
    """A GetModelInfoResponse."""
    info: ModelInfo = _plain(ModelInfo, message)
    return info
