"""Prompt lookup finds the latest earlier continuation, and learns how far to trust it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdist.drafters.ngram import NgramIndex


def by_search(tokens: list[int], low: int, high: int, count: int) -> list[int]:
    """The definition, by plain search."""
    for size in range(high, low - 1, -1):
        gram = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[end - size : end] == gram:
                return tokens[end : end + count]
    return []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 3), st.integers(0, 3))
def test_equals_plain_search(tokens: list[int], low: int, extra: int) -> None:
    index = NgramIndex(low, low + extra)
    index.extend(tokens[: len(tokens) // 2])
    index.extend(tokens[len(tokens) // 2 :])
    assert index.propose(5)[0] == by_search(tokens, low, low + extra, 5)


def test_continues_an_assumed_suffix() -> None:
    index = NgramIndex(2, 3)
    index.extend([1, 2, 3, 4, 5, 9, 9])
    assert index.propose(2, suffix=[2, 3]) == ([4, 5], 2)
    assert index.propose(2) == ([], 0)


def test_rejects_impossible_lengths() -> None:
    with pytest.raises(ValueError, match="ngram_min"):
        NgramIndex(3, 2)
