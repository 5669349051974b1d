"""Calibration and trust in the noise, fitted online."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specdist.speculation.acceptance import (
    LAMBDAS,
    NGRAM_PRIOR,
    Calibrator,
    LambdaFit,
    child_features,
    ngram_features,
)
from specdist.speculation.draft_sampling import rank_children, token_ranks
from specdist.speculation.noise import Noise
from specdist.speculation.selection import gumbel_argmax


def laws(seed: int, noise_level: float, vocab: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """A target's law and a draft's noisy view of it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(vocab, generator=generator)
    noisy = logits + noise_level * torch.randn(vocab, generator=generator)
    return torch.log_softmax(logits, 0), torch.log_softmax(noisy, 0)


def episode(seed: int, level: float, lam: float, k: int = 3):
    """Features of k candidates and which of them is the target's token."""
    log_p, log_q = laws(seed, level)
    ranked = rank_children(log_q[None], Noise(seed), [5], lam, k)
    token = gumbel_argmax(log_p, Noise(seed), 5)
    log_qs, scores = ranked.log_q[0].tolist(), ranked.scores[0].tolist()
    features = [child_features(log_qs[i], scores[i], scores[0], i) for i in range(k)]
    return features, [t == token for t in ranked.token_ids[0].tolist()]


@pytest.mark.parametrize("level", [0.5, 2.0])
def test_calibrated_chances_match_what_happens(level: float) -> None:
    calibrator, told, seen = Calibrator(), [], []
    for seed in range(1500):
        features, hits = episode(seed, level, 0.6)
        for x, hit in zip(features, hits, strict=True):
            if seed > 500:
                told.append(calibrator.probability(1, x))
                seen.append(hit)
            calibrator.observe(1, x, hit)
    told, seen = np.array(told), np.array(seen)
    assert abs(told.mean() - seen.mean()) < 0.03
    for low, high in ((0, 0.15), (0.15, 0.4), (0.4, 1)):
        inside = (told >= low) & (told < high)
        if inside.sum() > 150:
            assert abs(told[inside].mean() - seen[inside].mean()) < 0.08
    assert told[seen].mean() > told[~seen].mean() + 0.1


def test_a_draft_that_is_never_right_is_found_out_soon() -> None:
    calibrator, features = Calibrator(), child_features(math.log(0.8), 0.0, 0.0, 0)
    assert calibrator.probability(1, features) > 0.5
    for _ in range(25):
        calibrator.observe(1, features, hit=False)
    assert calibrator.probability(1, features) < 0.15
    assert calibrator.probability(2, features) > 0.5  # depths learn apart


def test_a_change_is_followed() -> None:
    calibrator, features = Calibrator(NGRAM_PRIOR), ngram_features(4, 2)
    for _ in range(500):
        calibrator.observe(1, features, hit=False)
    assert calibrator.probability(1, features) < 0.05
    for _ in range(150):
        calibrator.observe(1, features, hit=True)
    assert calibrator.probability(1, features) > 0.7


def test_chances_stay_inside_zero_and_one_and_depth_is_bounded() -> None:
    calibrator = Calibrator()
    wild = (1.0, 1e6, -1e6, 3.0)
    for depth in (1, 8, 900):
        calibrator.observe(depth, wild, hit=True)
        assert 0 < calibrator.probability(depth, wild) < 1
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        calibrator.probability(0, wild)
    with pytest.raises(ValueError, match="features must be finite"):
        calibrator.observe(1, (float("nan"),) * 4, hit=True)
    assert all(map(math.isfinite, child_features(-1e9, -1e9, 0.0, 0)))
    assert all(map(math.isfinite, child_features(0.0, 0.0, 0.0, 3)))


@pytest.mark.parametrize(("sharpness", "low", "high"), [(1.0, 0.8, 1.0), (0.15, 0.0, 0.4)])
def test_lambda_follows_the_quality_of_the_draft(sharpness: float, low: float, high: float) -> None:
    """A faithful draft is worth full trust in the noise; one far too flat is not."""
    fit = LambdaFit(start=0.6)
    for seed in range(400):
        log_p, _ = laws(seed, 0.0)
        log_q = torch.log_softmax(sharpness * log_p, 0)
        token = gumbel_argmax(log_p, Noise(seed), 5)
        fit.observe(1, token_ranks(log_q, Noise(seed), 5, token, LAMBDAS))
    assert low <= fit.value(1) <= high
    assert fit.value(2) == 0.6


def test_lambda_needs_a_clear_gain_to_move() -> None:
    fit = LambdaFit(start=1.0)
    for i in range(500):
        fit.observe(1, [i % 2] * 6)
    assert fit.value(1) == 1.0
    with pytest.raises(ValueError, match="one rank per lambda is needed"):
        fit.observe(1, [0])
