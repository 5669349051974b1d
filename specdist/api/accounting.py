"""What one answer cost and what speculation did for it: counts, for the last chunk.

Counts only tokens that belong to the answer, so that no part exceeds the whole when the
text ends in the middle of a step. Used by ``specdist.api.answer``; rendered by the HTTP
and gRPC sides.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from specdist.protocol.answer import SpeculationSummary, TokenDelta
from specdist.protocol.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, or of several."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    accepted_prediction_tokens: int = 0  # of the answer, proposed by the draft
    rejected_prediction_tokens: int = 0  # steps in which a candidate was rejected

    @property
    def total_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        names = [f.name for f in dataclasses.fields(self)]
        return Usage(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class AnswerTotals:
    """Everything that the end of an answer tells."""

    usage: Usage
    summary: SpeculationSummary
    seed: int
    rule: str
    lossless: bool


class Accounting:
    """Adds up the steps of one answer."""

    def __init__(self, request: GenerationRequest) -> None:
        self._usage = Usage(prompt_tokens=len(request.prompt_token_ids))
        self._summary = SpeculationSummary()
        self._histogram: list[int] = []
        self._seed = request.sampling.seed
        self._last = TokenDelta(())

    @property
    def num_steps(self) -> int:
        """Steps counted so far."""
        return self._summary.num_steps

    def add(self, delta: TokenDelta, num_kept: int) -> None:
        """Count one step of which the answer keeps the first ``num_kept`` tokens."""
        self._last = delta
        accepted = min(delta.num_accepted, num_kept)
        rejected = delta.num_draft_tokens > delta.num_accepted
        before = self._usage
        self._usage = dataclasses.replace(
            before,
            completion_tokens=before.completion_tokens + num_kept,
            cached_tokens=max(before.cached_tokens, delta.num_cached_tokens),
            accepted_prediction_tokens=before.accepted_prediction_tokens + accepted,
            # The token that replaced the candidate must be part of the answer.
            rejected_prediction_tokens=before.rejected_prediction_tokens
            + (rejected and num_kept > accepted),
        )
        self._count_step(delta, accepted, num_kept)

    def _count_step(self, delta: TokenDelta, accepted: int, num_kept: int) -> None:
        verified = delta.num_draft_tokens > 0
        if verified:
            self._histogram += [0] * (accepted + 1 - len(self._histogram))
            self._histogram[accepted] += 1
        before = self._summary
        self._summary = SpeculationSummary(
            num_spec_steps=before.num_spec_steps + verified,
            num_steps=before.num_steps + 1,
            num_draft_tokens=before.num_draft_tokens + delta.num_draft_tokens,
            num_accepted_tokens=before.num_accepted_tokens + accepted,
            num_generated_tokens=before.num_generated_tokens + num_kept,
            acceptance_histogram=tuple(self._histogram),
            num_stale_trees=delta.summary.num_stale_trees,
        )

    def totals(self) -> AnswerTotals:
        """The counts so far; the backend's own where it counted the same tokens."""
        theirs = self._last.summary
        whole = theirs.num_generated_tokens == self._usage.completion_tokens
        return AnswerTotals(
            usage=self._usage,
            summary=theirs if whole else self._summary,
            seed=self._last.seed if self._seed is None else self._seed,
            rule=self._last.rule,
            lossless=self._last.lossless,
        )
