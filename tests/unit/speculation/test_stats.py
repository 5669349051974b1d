"""Counts: definitions of the published counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdist.speculation.stats import SpeculationStats

VERDICTS = st.lists(
    st.integers(0, 8).flatmap(
        lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted), st.integers(0, 3))
    )
)


def test_small_history() -> None:
    stats = SpeculationStats()
    stats.observe(4, 2, 3)
    stats.observe(0, 0, 1)  # plain decoding: not a draft
    stats.observe(4, 0, 1, num_stale_trees=2)
    stats.observe(3, 3, 4)
    got = stats.to_summary()
    assert (got.num_steps, got.num_spec_steps) == (4, 3)
    assert (got.num_draft_tokens, got.num_accepted_tokens, got.num_generated_tokens) == (11, 5, 9)
    assert got.acceptance_histogram == (1, 0, 1, 1)
    assert stats.accepted_per_position == (2, 2, 1)
    assert got.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert got.draft_token_share == pytest.approx(5 / 9) and got.num_stale_trees == 2


@given(VERDICTS, VERDICTS)
def test_identities(first, second) -> None:
    """B107: no rate above 1; B110: accepted + next tokens = generated."""
    parts = []
    for verdicts in (first, second, first + second):
        stats = SpeculationStats()
        for drafted, accepted, stale in verdicts:
            stats.observe(drafted, accepted, accepted + 1, stale)
        assert sum(stats.acceptance_histogram) == stats.num_drafts
        assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
        assert stats.num_accepted_tokens + stats.num_steps == stats.num_generated_tokens
        summary = stats.to_summary()
        assert 0 <= summary.draft_acceptance_rate <= 1 and 0 <= summary.draft_token_share <= 1
        parts.append(stats)
    parts[0].add(parts[1])
    assert parts[0].to_summary() == parts[2].to_summary()


@pytest.mark.parametrize(("drafted", "accepted", "tokens"), [(2, 3, 4), (4, 3, 2), (1, -1, 1)])
def test_impossible_verdicts_are_refused(drafted: int, accepted: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="num_accepted must be in"):
        SpeculationStats().observe(drafted, accepted, tokens)
