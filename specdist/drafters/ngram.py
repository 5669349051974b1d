"""Prompt lookup: what followed the last time the text looked like this.

Pure and without a model; the draft worker merges the continuation into the session's
tree. An index of all n-grams is kept per session and extended as tokens are committed,
so that a proposal costs a few dictionary look-ups, however long the context is.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """Where each n-gram of one session last ended, for every length that is matched."""

    def __init__(self, ngram_min: int, ngram_max: int) -> None:
        if not 1 <= ngram_min <= ngram_max:
            raise ValueError(f"need 1 <= ngram_min <= ngram_max, got {ngram_min} and {ngram_max}")
        self._sizes = range(ngram_max, ngram_min - 1, -1)
        self._tokens: list[int] = []
        self._last_end: dict[tuple[int, ...], int] = {}
        self._previous_end: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take up newly committed tokens."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            for size in self._sizes:
                if size <= end:
                    gram = tuple(self._tokens[end - size : end])
                    if gram in self._last_end:
                        self._previous_end[gram] = self._last_end[gram]
                    self._last_end[gram] = end

    def propose(self, max_tokens: int, suffix: Sequence[int] = ()) -> tuple[list[int], int]:
        """The continuation of the longest known suffix, and the length that matched.

        ``suffix`` holds tokens that are assumed after the committed ones. Returns an
        empty list and 0 when nothing matches.
        """
        tail = (self._tokens[-max(self._sizes) :] + list(suffix))[-max(self._sizes) :]
        for size in self._sizes:
            if size > len(tail):
                continue
            end = self._earlier_end(tuple(tail[-size:]), at_end=not suffix)
            if end is not None:
                return self._tokens[end : end + max_tokens], size
        return [], 0

    def _earlier_end(self, gram: tuple[int, ...], at_end: bool) -> int | None:
        end = self._last_end.get(gram)
        if end is not None and at_end and end == len(self._tokens):
            end = self._previous_end.get(gram)
        return end if end is not None and end < len(self._tokens) else None
