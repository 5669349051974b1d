"""Text deltas -> the bodies and stream chunks of OpenAI's two text endpoints.

Adds ``speculation`` and ``seed`` to what OpenAI defines: the totals at the end, and on each
chunk of a stream, in its choice, what that step did. Knows no HTTP. Called by
``specdist.api.openai``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specdist.api.accounting import AnswerTotals, Usage
from specdist.api.answer import TextDelta
from specdist.api.model_card import ModelCard
from specdist.api.openai_requests import OpenAIRequest
from specdist.api.token_text import ShownToken, show_chosen, show_top
from specdist.protocol.answer import SpeculationSummary
from specdist.protocol.verdict import TokenLogprobs

Json = dict[str, Any]


def usage_body(usage: Usage) -> Json:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def speculation_body(totals: Sequence[AnswerTotals]) -> Json:
    """The statistics of one request; several answers are added up."""
    summary = _sum([t.summary for t in totals])
    return {
        "rule": totals[0].rule,
        "lossless": all(t.lossless for t in totals),
        "num_steps": summary.num_steps,
        "num_spec_steps": summary.num_spec_steps,
        "num_draft_tokens": summary.num_draft_tokens,
        "num_accepted_tokens": summary.num_accepted_tokens,
        "num_stale_trees": summary.num_stale_trees,
        "draft_acceptance_rate": summary.draft_acceptance_rate,
        "mean_acceptance_length": summary.mean_acceptance_length,
        "draft_token_share": summary.draft_token_share,
        "acceptance_histogram": list(summary.acceptance_histogram),
    }


def step_body(delta: TextDelta) -> Json:
    """What one step did, on the choice of its chunk.

    The first ``num_draft_tokens_accepted`` of the ``num_tokens`` came from the draft; the
    one behind them, if any, is the target's own.
    """
    return {
        "step": delta.step,
        "num_tokens": len(delta.token_ids),
        "num_draft_tokens": delta.num_draft_tokens,
        "num_draft_tokens_accepted": delta.num_accepted,
    }


def _sum(parts: Sequence[SpeculationSummary]) -> SpeculationSummary:
    longest = max(len(p.acceptance_histogram) for p in parts)
    rows = [
        (*p.acceptance_histogram, *[0] * (longest - len(p.acceptance_histogram))) for p in parts
    ]
    return SpeculationSummary(
        num_spec_steps=sum(p.num_spec_steps for p in parts),
        num_steps=sum(p.num_steps for p in parts),
        num_draft_tokens=sum(p.num_draft_tokens for p in parts),
        num_accepted_tokens=sum(p.num_accepted_tokens for p in parts),
        num_generated_tokens=sum(p.num_generated_tokens for p in parts),
        acceptance_histogram=tuple(sum(column) for column in zip(*rows, strict=True)),
        num_stale_trees=sum(p.num_stale_trees for p in parts),
    )


@dataclass(slots=True)
class GatheredAnswer:
    """All deltas of one answer, joined."""

    text: str = ""
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    totals: AnswerTotals | None = None

    def add(self, delta: TextDelta) -> None:
        """Append the next delta."""
        self.text += delta.text
        self.offsets += delta.offsets
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.totals = delta.totals


class OpenAIAnswer:
    """Writes the answer to one HTTP request, whole or in chunks."""

    def __init__(self, request: OpenAIRequest, card: ModelCard) -> None:
        self._request = request
        self._card = card
        self._created = int(time.time())

    def whole(self, answers: Sequence[GatheredAnswer]) -> Json:
        """The body of an answer that is not streamed."""
        totals = [a.totals for a in answers if a.totals is not None]
        return {
            **self._head(streamed=False),
            "choices": [self._whole_choice(i, a, len(answers) > 1) for i, a in enumerate(answers)],
            **self._end(totals),
        }

    def _whole_choice(self, index: int, answer: GatheredAnswer, is_one_of_many: bool) -> Json:
        logprobs = self._logprobs(answer.logprobs, answer.offsets)
        if self._request.is_chat:
            content: Json = {"message": {"role": "assistant", "content": answer.text}}
        else:
            content = {"text": answer.text}
        own = {"seed": answer.totals.seed} if is_one_of_many and answer.totals else {}
        tail = {"logprobs": logprobs, "finish_reason": answer.finish_reason}
        return {"index": index, **content, **tail, **own}

    def first_chunks(self) -> list[Json]:
        """What a stream begins with: in a chat, the role of each choice."""
        if not self._request.is_chat:
            return []
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(i, delta, None, None) for i in range(len(self._request.answers))]

    def chunk(self, index: int, delta: TextDelta) -> Json | None:
        """One delta of one choice; None when it has nothing that a client could see."""
        logprobs = self._logprobs(delta.logprobs, delta.offsets) if delta.token_ids else None
        if not delta.text and not logprobs and delta.finish_reason is None:
            return None
        if self._request.is_chat:
            content: Json = {"delta": {"content": delta.text} if delta.text else {}}
        else:
            content = {"text": delta.text}
        chunk = self._chunk(index, content, logprobs, delta.finish_reason)
        chunk["choices"][0]["speculation"] = step_body(delta)
        if delta.totals is not None:
            chunk["speculation"] = speculation_body([delta.totals])
            chunk["seed"] = delta.totals.seed
        return chunk

    def last_chunk(self, totals: Sequence[AnswerTotals]) -> Json | None:
        """The chunk that carries the usage, where it was asked for."""
        if not self._request.include_usage:
            return None
        return {**self._head(streamed=True), "choices": [], **self._end(totals)}

    def _chunk(self, index: int, content: Json, logprobs: Json | None, reason: str | None) -> Json:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._request.include_usage else {}
        return {**self._head(streamed=True), "choices": [choice], **usage}

    def _head(self, *, streamed: bool) -> Json:
        kind = "text_completion"
        if self._request.is_chat:
            kind = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": self._request.request_id,
            "object": kind,
            "created": self._created,
            "model": self._card.name,
        }

    def _end(self, totals: Sequence[AnswerTotals]) -> Json:
        usage = sum((t.usage for t in totals), Usage())
        return {
            "usage": usage_body(usage),
            "speculation": speculation_body(totals),
            "seed": totals[0].seed,
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs], offsets: Sequence[int]) -> Json | None:
        num_logprobs = self._request.num_logprobs
        if num_logprobs is None:
            return None
        tokenizer = self._card.tokenizer
        chosen = [show_chosen(tokenizer, e) for e in entries]
        tops = [show_top(tokenizer, e, num_logprobs) for e in entries]
        if self._request.is_chat:
            pairs = zip(chosen, tops, strict=True)
            content = [
                {**_chat_token(c), "top_logprobs": [_chat_token(t) for t in top]}
                for c, top in pairs
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [c.key for c in chosen],
            "token_logprobs": [c.logprob for c in chosen],
            "top_logprobs": [_by_text(c, t) for c, t in zip(chosen, tops, strict=True)]
            if num_logprobs
            else [],
            "text_offset": list(offsets),
        }


def _chat_token(token: ShownToken) -> Json:
    return {"token": token.text, "bytes": list(token.data), "logprob": token.logprob}


def _by_text(chosen: ShownToken, top: Sequence[ShownToken]) -> Json:
    """OpenAI's form: the likeliest tokens, and the chosen one if it is none of them."""
    found: Json = {}
    for token in (*top, chosen):
        found.setdefault(token.key, token.logprob)
    return found
