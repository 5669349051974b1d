"""Token deltas -> text deltas: one answer, from the backend's steps to what is shown.

Detokenizes, looks for stop strings and the tokens that end an answer, and cuts text,
token ids and logprobs at the same place whatever the steps were. ``AnswerText`` is pure;
``text_deltas`` drives it and closes the backend's iterator as soon as the answer ends.
Called by the HTTP routes and the gRPC service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

from specdist.api.accounting import Accounting, AnswerTotals
from specdist.api.backend import Backend
from specdist.api.detokenizer import Detokenizer
from specdist.api.error_map import known_error
from specdist.api.model_card import ModelCard
from specdist.api.stop import StopMatcher
from specdist.api.validation import PreparedRequest
from specdist.errors import DeadlineError, InternalError, SpecdistError
from specdist.protocol.answer import TokenDelta
from specdist.protocol.verdict import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step adds to the answer; ``totals`` and ``finish_reason`` on the last one."""

    text: str
    token_ids: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()  # characters of the answer before each token
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_accepted: int = 0  # the first num_accepted of token_ids came from the draft
    num_draft_tokens: int = 0  # candidates verified in this step
    step: int = 0  # this delta's number, from 1
    finish_reason: str | None = None
    totals: AnswerTotals | None = None


@dataclass(slots=True)
class _Piece:
    """The delta in the making."""

    text: str = ""
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class AnswerText:
    """One answer's text side; feed it the backend's deltas until ``finish_reason``."""

    def __init__(self, request: PreparedRequest, card: ModelCard) -> None:
        generation = request.generation
        sampling = generation.sampling
        self._request = generation
        self._max_tokens = sampling.max_tokens
        # A stop string counts from min_tokens on: text before that is never part of one.
        self._min_tokens = sampling.min_tokens
        eos = frozenset() if sampling.ignore_eos else card.eos_token_ids
        self._enders = eos | set(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(
            card.tokenizer,
            skip_special_tokens=request.skip_special_tokens,
            prompt_token_ids=generation.prompt_token_ids,
        )
        self._stop = StopMatcher(request.stop)
        self._accounting = Accounting(generation)
        self._num_tokens = 0
        self._num_chars = 0
        self.finish_reason: str | None = None

    def push(self, delta: TokenDelta) -> TextDelta:
        """Take one step; what lies behind the end of the answer is dropped."""
        if self.finish_reason is not None:
            raise RuntimeError("the answer is over")
        self._check(delta)
        piece = _Piece()
        for token_id in delta.token_ids:
            self._push_token(token_id, piece)
            if piece.finish_reason is not None:
                break
        else:
            piece.finish_reason = delta.finish_reason
        if piece.finish_reason is not None:
            self._finish(piece)
        num_kept = len(piece.offsets)
        self._accounting.add(delta, num_kept)
        self.finish_reason = piece.finish_reason
        return TextDelta(
            text=piece.text,
            token_ids=delta.token_ids[:num_kept],
            offsets=tuple(piece.offsets),
            logprobs=delta.logprobs[:num_kept],
            num_accepted=min(delta.num_accepted, num_kept),
            num_draft_tokens=delta.num_draft_tokens,
            step=self._accounting.num_steps,
            finish_reason=piece.finish_reason,
            totals=self._accounting.totals() if piece.finish_reason else None,
        )

    def _check(self, delta: TokenDelta) -> None:
        wanted = 0 if self._request.num_logprobs is None else len(delta.token_ids)
        if len(delta.logprobs) < wanted:
            raise InternalError(
                f"request {self._request.request_id}: {len(delta.token_ids)} tokens came "
                f"with {len(delta.logprobs)} logprobs"
            )
        if delta.finish_reason not in (None, "stop", "length"):
            raise InternalError(
                f"request {self._request.request_id}: the answer ended with "
                f"{delta.finish_reason!r} after {self._num_tokens} tokens"
            )

    def _push_token(self, token_id: int, piece: _Piece) -> None:
        self._num_tokens += 1
        piece.offsets.append(self._num_chars)
        if token_id in self._enders:  # committed and counted, not shown
            piece.finish_reason = "stop"
            return
        text = self._detokenizer.push(token_id)
        self._num_chars += len(text)
        self._release(text, piece)
        if self._stop.hit is not None:
            piece.finish_reason = "stop"
        elif self._num_tokens == self._max_tokens:
            piece.finish_reason = "length"

    def _release(self, text: str, piece: _Piece) -> None:
        looking = self._num_tokens >= self._min_tokens
        piece.text += self._stop.push(text) if looking else text

    def _finish(self, piece: _Piece) -> None:
        if self._stop.hit is None:
            self._release(self._detokenizer.flush(), piece)
        if self._stop.hit is None:
            piece.text += self._stop.flush()
        else:
            piece.finish_reason = "stop"


async def text_deltas(
    backend: Backend, request: PreparedRequest, card: ModelCard
) -> AsyncGenerator[TextDelta, None]:
    """Run one request; closing the generator cancels it in the backend.

    Raises what the backend raises, DeadlineError when the client's time is over and
    InternalError when the backend stops before the answer has an end.
    """
    answer = AnswerText(request, card)
    timeout_s = request.generation.timeout_s
    ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    deltas = cast(AsyncGenerator[TokenDelta, None], backend.generate(request.generation))
    async with aclosing(deltas):
        while (delta := await _next_delta(deltas, ends_at, request.request_id)) is not None:
            shown = answer.push(delta)
            if answer.finish_reason is not None:
                await deltas.aclose()  # its resources are free before the client knows
            yield shown
            if answer.finish_reason is not None:
                return
    raise InternalError(f"request {request.generation.request_id}: the answer broke off")


async def _next_delta(
    deltas: AsyncGenerator[TokenDelta, None], ends_at: float | None, request_id: str
) -> TokenDelta | None:
    """The next delta, or None when there is none; DeadlineError when it comes too late.

    The boundary to the backend: what it raises that is none of ours is logged and hidden.
    """
    try:
        async with asyncio.timeout_at(ends_at) as limit:
            return await anext(deltas, None)
    except SpecdistError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            raise DeadlineError("the deadline of this request has passed") from None
        raise known_error(error, request_id) from None
