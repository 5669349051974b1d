"""What the router gives back to the API for one request, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdist.protocol.verdict import TokenLogprobs


@dataclass(frozen=True, slots=True)
class SpeculationSummary:
    """Counts of one request; ratios are properties, computed at the edge."""

    num_spec_steps: int = 0  # steps that verified at least one candidate
    num_steps: int = 0  # all verification steps
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_generated_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()  # [i]: spec steps that accepted exactly i
    num_stale_trees: int = 0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens; 0 when nothing was proposed."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted tokens per verified draft; 1 when nothing was verified."""
        return 1 + (self.num_accepted_tokens / self.num_spec_steps if self.num_spec_steps else 0.0)

    @property
    def draft_token_share(self) -> float:
        """Accepted draft tokens over all generated tokens."""
        if not self.num_generated_tokens:
            return 0.0
        return self.num_accepted_tokens / self.num_generated_tokens


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Tokens committed by one step of one request; the last one carries the rest."""

    token_ids: tuple[int, ...]
    num_accepted: int = 0  # the first num_accepted of token_ids came from the draft
    num_draft_tokens: int = 0  # candidates verified in this step
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    seed: int = 0
    num_cached_tokens: int = 0
    rule: str = "coupled"
    lossless: bool = True
    summary: SpeculationSummary = field(default_factory=SpeculationSummary)
