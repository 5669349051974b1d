"""What draft scores are worth: calibrated chances and the trust in the noise, online.

Draft confidences are over-sure, differently at each depth. A ``Calibrator`` turns the
features of a candidate into the chance that it is the target's token, given that its
parent is on the true path; ``LambdaFit`` finds how far the draft should trust the
target's noise. Both learn from verdicts in bounded memory. Plain Python; knows no tree
and no model. Owned by a drafter: one calibrator per kind of candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_DEPTH = 8  # deeper nodes share the last set of weights
_LOGIT_CAP = 12.0

# (1, log odds of q, gap to the best sibling, log of 1 + rank); see ``child_features``.
DRAFT_PRIOR = (-0.5, 0.6, 0.3, -0.5)
# (1, log of the matched length, log of 1 + times seen); see ``ngram_features``.
NGRAM_PRIOR = (-1.0, 0.7, 0.3)


def child_features(log_q: float, score: float, best_score: float, rank: int) -> tuple[float, ...]:
    """Features of a draft model's candidate: its log q, perturbed score and rank (0 is best)."""
    q = min(max(math.exp(log_q), 1e-5), 1 - 1e-3)
    gap = max(score - best_score, -10.0)
    return (1.0, math.log(q / (1 - q)), gap, math.log1p(rank))


def ngram_features(match_len: int, num_seen: int) -> tuple[float, ...]:
    """Features of a prompt-lookup candidate: tokens matched, continuations that agree."""
    return (1.0, math.log(max(match_len, 1)), math.log1p(num_seen))


class Calibrator:
    """Logistic regression per depth, trained one observation at a time (AdaGrad).

    Old gradients fade, so that the fit follows a request mix that changes.
    """

    def __init__(
        self,
        prior: Sequence[float] = DRAFT_PRIOR,
        learning_rate: float = 0.3,
        fading: float = 0.999,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._rate = learning_rate
        self._fading = fading
        self._weights = [list(prior) for _ in range(max_depth)]
        self._squares = [[1.0] * len(prior) for _ in range(max_depth)]

    def probability(self, depth: int, features: Sequence[float]) -> float:
        """Chance in (0, 1) that the candidate is the target's token, its parent being right."""
        weights = self._weights[self._level(depth)]
        logit = sum(w * x for w, x in zip(weights, features, strict=True))
        return 1 / (1 + math.exp(-min(max(logit, -_LOGIT_CAP), _LOGIT_CAP)))

    def observe(self, depth: int, features: Sequence[float], hit: bool) -> None:
        """A verdict reached the candidate's parent: was the candidate the token?"""
        if not all(map(math.isfinite, features)):
            raise ValueError(f"features must be finite, got {tuple(features)}")
        error = self.probability(depth, features) - hit
        level = self._level(depth)
        weights, squares = self._weights[level], self._squares[level]
        for i, x in enumerate(features):
            gradient = error * x
            squares[i] = squares[i] * self._fading + gradient * gradient
            weights[i] -= self._rate * gradient / math.sqrt(squares[i])

    def _level(self, depth: int) -> int:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        return min(depth, len(self._weights)) - 1


class LambdaFit:
    """Which trust in the noise puts the target's token among the first children most often.

    Per depth a fading hit rate for every value of ``LAMBDAS``; the choice moves only for a
    clear gain, because all of a session's noise ranking moves with it.
    """

    def __init__(
        self,
        start: float = 1.0,
        width: int = 4,
        fading: float = 0.99,
        margin: float = 0.02,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        nearest = min(range(len(LAMBDAS)), key=lambda i: abs(LAMBDAS[i] - start))
        self._width = width
        self._fading = fading
        self._margin = margin
        self._chosen = [nearest] * max_depth
        self._gains = [[0.0] * len(LAMBDAS) for _ in range(max_depth)]
        self._weights = [0.0] * max_depth

    def value(self, depth: int) -> float:
        """The lambda to rank with at this depth."""
        return LAMBDAS[self._chosen[self._level(depth)]]

    def observe(self, depth: int, ranks: Sequence[int]) -> None:
        """``ranks[i]``: the rank the target's token had under ``LAMBDAS[i]`` (0 is best)."""
        if len(ranks) != len(LAMBDAS):
            raise ValueError(f"one rank per lambda is needed ({len(LAMBDAS)}), got {len(ranks)}")
        level = self._level(depth)
        gains = self._gains[level]
        for i, rank in enumerate(ranks):
            gains[i] = gains[i] * self._fading + self._worth(rank)
        self._weights[level] = self._weights[level] * self._fading + 1
        best = max(range(len(gains)), key=gains.__getitem__)
        ahead = gains[best] - gains[self._chosen[level]]
        if ahead > self._margin * self._weights[level] and self._weights[level] > 10:
            self._chosen[level] = best

    def _worth(self, rank: int) -> float:
        """Hits at widths 1, 2, ... up to ``width``, averaged: a better rank is worth more."""
        return max(0, self._width - rank) / self._width

    def _level(self, depth: int) -> int:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        return min(depth, len(self._chosen)) - 1
