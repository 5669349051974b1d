"""The n-gram drafter: prompt lookup merged into each session's tree.

Its scores are calibrated online, per length of the match, from what the target commits.
Called by the draft worker at every new root; needs no model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from specdist.config import SpeculationConfig
from specdist.drafters.base import DraftSession
from specdist.drafters.growing_tree import ROOT, Features
from specdist.drafters.ngram import NgramIndex
from specdist.speculation.acceptance import NGRAM_PRIOR, Calibrator, ngram_features
from specdist.speculation.constraint import ConstraintError, num_admitted

logger = logging.getLogger(__name__)


class PromptLookup:
    """Proposes the continuation of the longest earlier occurrence of the text's end."""

    name = "ngram"

    def __init__(self, settings: SpeculationConfig) -> None:
        self._settings = settings
        self._indexes: dict[str, NgramIndex] = {}
        self._proposed: dict[str, tuple[list[int], Features]] = {}
        self._calibrator = Calibrator(prior=NGRAM_PRIOR)

    def committed(self, session: DraftSession, tokens: Sequence[int]) -> None:
        """Extend the session's index and learn how far the last proposal held."""
        proposed = self._proposed.pop(session.request.session_id, None)
        if proposed is not None:
            continuation, features = proposed
            for depth, (guess, token) in enumerate(zip(continuation, tokens, strict=False), 1):
                self._calibrator.observe(depth, features, guess == token)
                if guess != token:
                    break
        self._index(session)

    def propose(self, session: DraftSession) -> None:
        """Merge the continuation into the tree as a chain from the root."""
        if session.draws:
            return  # a rule that needs the draft's own draws admits no other candidates
        found, size = self._index(session).propose(session.limits.max_depth)
        found = self._permitted(session, found)
        if not found:
            return
        features = ngram_features(size, 1)
        self._proposed[session.request.session_id] = (found, features)
        node, score = ROOT, 1.0
        for depth, token in enumerate(found, 1):
            score *= self._calibrator.probability(depth, features)
            node = session.tree.add(node, token, score)

    def _permitted(self, session: DraftSession, found: list[int]) -> list[int]:
        """The part that the answer's grammar admits."""
        constraint = session.sampling.constraint
        if constraint is None or not found:
            return found
        try:
            return found[: num_admitted(constraint, found)]
        except ConstraintError as error:
            logger.warning("%s: no prompt lookup: %s", session.request.session_id, error)
            return []

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
