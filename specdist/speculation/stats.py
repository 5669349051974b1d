"""Counts of what speculation did, per request or per replica; ratios are for the edge.

Definitions (the counters that vLLM publishes):
    a draft          a step that verified at least one candidate
    a draft token    a candidate verified, root excluded
    an accepted one  a candidate that was committed; the next token is never counted
    per_position[i]  drafts that accepted more than i tokens

Knows no metrics library. Fed by the workers and the router, once per verdict.
"""

from __future__ import annotations

from itertools import accumulate

from specdist.protocol.answer import SpeculationSummary


class SpeculationStats:
    """Accumulates one verdict after another."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_generated_tokens = 0
        self.num_stale_trees = 0
        self._histogram: list[int] = []

    def observe(
        self, num_draft_tokens: int, num_accepted: int, num_tokens: int, num_stale_trees: int = 0
    ) -> None:
        """One verdict: candidates verified, accepted ones kept, tokens committed."""
        if not 0 <= num_accepted <= min(num_draft_tokens, num_tokens):
            raise ValueError(
                f"num_accepted must be in 0..{min(num_draft_tokens, num_tokens)} "
                f"({num_draft_tokens} candidates, {num_tokens} tokens), got {num_accepted}"
            )
        self.num_steps += 1
        self.num_generated_tokens += num_tokens
        self.num_stale_trees += num_stale_trees
        if not num_draft_tokens:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        self._grow(num_accepted + 1)
        self._histogram[num_accepted] += 1

    def add(self, other: SpeculationStats) -> None:
        """Take in the counts of another accumulator."""
        self.num_steps += other.num_steps
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self.num_generated_tokens += other.num_generated_tokens
        self.num_stale_trees += other.num_stale_trees
        self._grow(len(other._histogram))
        for accepted, count in enumerate(other._histogram):
            self._histogram[accepted] += count

    @property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """[i]: drafts that accepted exactly i tokens."""
        return tuple(self._histogram)

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """[i]: drafts whose token number i (from 0) was accepted."""
        at_least = list(accumulate(reversed(self._histogram)))[::-1]
        return tuple(at_least[1:])

    def to_summary(self) -> SpeculationSummary:
        """The record that goes into an answer."""
        return SpeculationSummary(
            num_spec_steps=self.num_drafts,
            num_steps=self.num_steps,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            num_generated_tokens=self.num_generated_tokens,
            acceptance_histogram=self.acceptance_histogram,
            num_stale_trees=self.num_stale_trees,
        )

    def _grow(self, length: int) -> None:
        self._histogram.extend([0] * (length - len(self._histogram)))
