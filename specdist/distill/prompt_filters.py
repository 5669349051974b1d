"""Prompts that must never be used: equal to, or overlapping with, an excluded text.

Two texts overlap when they share 13 words in a row, or, where the excluded text is shorter
but has at least 5 words, all of them in a row; texts of fewer words only when they are
equal. Compared are normalised words: NFKC, case folded, letters and digits only; scripts
without spaces count each character as a word. Knows no files; called where prompts are
collected and where the target writes new ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

NGRAM = 13
SHORTEST_PART = 5
# CJK, kana, Thai, Lao, Khmer, Myanmar: written without spaces.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """The normalised words of a text."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Combining marks belong to the letter before them.
    kept = "".join(c for c in folded if unicodedata.category(c)[0] != "M")
    return _WORD.findall(kept)


def normalised(text: str) -> str:
    """Equal for texts that differ only in case, spaces and punctuation."""
    return " ".join(words_of(text))


class Exclusion:
    """The excluded texts, as the set of their word sequences."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._whole: set[str] = set()
        self._parts: dict[int, set[int]] = {}  # length in words -> hashes
        for text in texts:
            words = words_of(text)
            self._whole.add(" ".join(words))
            size = min(NGRAM, len(words))
            if size >= SHORTEST_PART:
                self._parts.setdefault(size, set()).update(_hashes(words, size))

    def __len__(self) -> int:
        return len(self._whole)

    def matches(self, text: str) -> bool:
        """Whether a prompt with this text must not be used."""
        words = words_of(text)
        if " ".join(words) in self._whole:
            return True
        return any(h in known for size, known in self._parts.items() for h in _hashes(words, size))


def _hashes(words: list[str], size: int) -> Iterator[int]:
    for first in range(len(words) - size + 1):
        yield hash(tuple(words[first : first + size]))
