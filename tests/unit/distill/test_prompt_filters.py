"""What counts as an excluded prompt."""

from __future__ import annotations

import pytest

from specdist.distill.prompt_filters import Exclusion, normalised, words_of

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.mark.parametrize(
    ("excluded", "text", "matches"),
    [
        ("Say hi.", "say HI", True),  # equal but for case and punctuation
        ("Say hi.", "Please say hi.", False),  # too short to be searched for inside
        ("who wrote the old book", "Tell me: who wrote the old book?", True),
        ("who wrote the old book", "who wrote the new book", False),
        (LONG, f"Summarize: {LONG} and more", True),
        (LONG, LONG.replace("seven", "7"), False),  # no 13 words in a row are left
        (LONG, " ".join(LONG.split()[1:]), True),  # 13 of the 14 words
        ("Ｗｈｏ　wrote the old book", "who wrote the old book", True),  # full width
        ("今日はとても良い天気ですね本当に", "質問:今日はとても良い天気ですね本当に。", True),
    ],
)
def test_matches(excluded: str, text: str, matches: bool) -> None:
    assert Exclusion([excluded]).matches(text) is matches


def test_nothing_is_excluded_by_nothing() -> None:
    assert not Exclusion().matches("anything at all")


def test_words() -> None:
    assert words_of("Déjà-vu, 3.5 天気!") == ["déjà", "vu", "3", "5", "天", "気"]
    assert normalised("  A\n b ") == "a b"
