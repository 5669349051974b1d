"""Stop strings: found wherever they lie, and nothing held that cannot match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdist.api.stop import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(p) for p in pieces]
    return [*shown, matcher.flush()], matcher.hit


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "hit"),
    [
        ([], ["a", "b"], ["a", "b", ""], None),
        (["b"], ["ab", "c"], ["a", "", ""], "b"),
        (["abc"], ["xa", "b", "c", "d"], ["x", "", "", "", ""], "abc"),
        (["abc"], ["xa", "b", "d"], ["x", "", "abd", ""], None),  # B021: in order
        (["abc"], ["ab"], ["", "ab"], None),  # flushed at the end
        (["aab"], ["aaab"], ["a", ""], "aab"),  # the match begins inside a failed one
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""], "aab"),
        (["c", "abc"], ["ab", "c"], ["", "", ""], "abc"),  # the earlier start wins
        (["ab", "abc"], ["abc"], ["", ""], "abc"),  # then the longest
        ([", 7, 9"], [", 7", ", ", "8"], ["", "", ", 7, 8", ""], None),
        (["日本"], ["a日", "本x"], ["a", "", ""], "日本"),
    ],
)
def test_cases(stops: list[str], pieces: list[str], shown: list[str], hit: str | None) -> None:
    assert run(stops, pieces) == (shown, hit)


@given(
    stops=st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("ab c", max_size=3), max_size=12),
)
def test_shown_text_is_the_text_up_to_the_first_stop(stops: list[str], pieces: list[str]) -> None:
    shown, hit = run(stops, pieces)
    seen = ""
    for piece in pieces:  # a naive search over everything seen so far, piece by piece
        seen += piece
        starts = [seen.find(s) for s in stops if s in seen]
        if starts:
            assert ("".join(shown), hit is not None) == (seen[: min(starts)], True)
            return
    assert ("".join(shown), hit) == (seen, None)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_what_waits_could_still_match(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen, shown = "", ""
    for piece in pieces:
        seen += piece
        shown += matcher.push(piece)
        if matcher.hit:
            return
        waiting = seen[len(shown) :]
        assert not waiting or any(s.startswith(waiting) for s in stops)
