"""The n-gram drafter: prompt lookup merged into each session's tree.

Its scores are calibrated online, per length of the match, from what the target commits.
Called by the draft worker at every new root; needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdist.config import SpeculationConfig
from specdist.drafters.base import DraftSession
from specdist.drafters.growing_tree import ROOT
from specdist.drafters.ngram import NgramIndex

FIRST_GUESS = 0.3  # chance that the first token holds before anything is learnt
CONTINUATION = 0.8  # chance that a continuation that has held so far goes on
SMOOTHING = 0.05


class PromptLookup:
    """Proposes the continuation of the longest earlier occurrence of the text's end."""

    name = "ngram"

    def __init__(self, settings: SpeculationConfig) -> None:
        self._settings = settings
        self._indexes: dict[str, NgramIndex] = {}
        self._proposed: dict[str, tuple[int, int]] = {}  # session -> (first token, match length)
        self._hit_rate: dict[int, float] = {}

    def committed(self, session: DraftSession, tokens: Sequence[int]) -> None:
        """Extend the session's index and learn whether the last proposal held."""
        session_id = session.request.session_id
        proposed = self._proposed.pop(session_id, None)
        if proposed is not None and tokens:
            token, size = proposed
            rate = self._hit_rate.get(size, FIRST_GUESS)
            self._hit_rate[size] = rate + SMOOTHING * (float(token == tokens[0]) - rate)
        self._index(session)

    def propose(self, session: DraftSession) -> None:
        """Merge the continuation into the tree as a chain from the root."""
        if session.draws:
            return  # a rule that needs the draft's own draws admits no other candidates
        found, size = self._index(session).propose(session.limits.max_depth)
        if not found:
            return
        self._proposed[session.request.session_id] = (found[0], size)
        node, score = ROOT, self._hit_rate.get(size, FIRST_GUESS)
        for token in found:
            node = session.tree.add(node, token, score)
            score *= CONTINUATION

    def forget(self, session: DraftSession) -> None:
        """Drop what is kept for the session."""
        self._indexes.pop(session.request.session_id, None)
        self._proposed.pop(session.request.session_id, None)

    def _index(self, session: DraftSession) -> NgramIndex:
        session_id = session.request.session_id
        index = self._indexes.get(session_id)
        if index is None:
            index = NgramIndex(self._settings.ngram_min, self._settings.ngram_max)
            self._indexes[session_id] = index
        index.extend(session.tokens[len(index) :])
        return index
