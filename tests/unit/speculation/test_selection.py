"""Choosing one token: the pruned Gumbel-max is the full one; inverse distribution; guards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specdist.speculation.noise import Noise
from specdist.speculation.selection import KeyedChance, argmax, draw_index, gumbel_argmax


def full_argmax(scores: torch.Tensor, noise: Noise, position: int) -> int:
    return int((scores.double() + noise.gumbel_rows([position], len(scores))[0]).argmax())


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 5000),
    st.sampled_from([1, 2, 50, 3001]),
    st.floats(0.0, 300.0),
    st.floats(-1e4, 1e4),
    st.sampled_from([0.0, 0.5, 0.99]),
)
def test_pruned_is_full(seed, position, vocab, spread, offset, masked) -> None:
    rng = np.random.default_rng(seed)
    scores = torch.tensor(offset + spread * rng.standard_normal(vocab), dtype=torch.float32)
    scores[torch.from_numpy(rng.random(vocab) < masked)] = -torch.inf
    scores[rng.integers(vocab)] = offset
    noise = Noise(seed)
    got = gumbel_argmax(scores, noise, position)
    assert got == full_argmax(scores, noise, position)
    assert scores[got] > -torch.inf


@pytest.mark.parametrize("kind", ["flat", "normal", "peaked", "heavy tail"])
def test_pruned_is_full_on_a_real_vocabulary(kind: str) -> None:
    vocab, rng = 49152, np.random.default_rng(1)
    for seed in range(12):
        row = {
            "flat": np.zeros(vocab),
            "normal": rng.standard_normal(vocab) * 3,
            "peaked": np.where(np.arange(vocab) == 77, 25.0, rng.standard_normal(vocab)),
            "heavy tail": rng.standard_t(2, vocab),
        }[kind]
        scores = torch.tensor(row, dtype=torch.float32)
        assert gumbel_argmax(scores, Noise(seed), seed) == full_argmax(scores, Noise(seed), seed)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_gumbel_max_samples_the_softmax(scale: float) -> None:
    scores = scale * torch.randn(12, generator=torch.Generator().manual_seed(3))
    scores[4] = -torch.inf
    law, runs = torch.softmax(scores.double(), 0).numpy(), 4000
    by_position = [gumbel_argmax(scores, Noise(11), i) for i in range(runs)]
    by_seed = [gumbel_argmax(scores, Noise(i), 11) for i in range(runs)]
    for tokens in (by_position, by_seed):
        seen = np.bincount(tokens, minlength=12)
        assert seen[4] == 0
        keep = law > 0
        assert stats.chisquare(seen[keep], law[keep] * runs).pvalue > 1e-4


def test_argmax_takes_the_lowest_id_and_refuses_nan() -> None:
    assert argmax(torch.tensor([1.0, 3.0, 3.0])) == 1
    for bad in (float("nan"), float("inf")):
        with pytest.raises(FloatingPointError):
            argmax(torch.tensor([1.0, bad, 3.0]))
        with pytest.raises(FloatingPointError):
            gumbel_argmax(torch.tensor([1.0, bad, 3.0]), Noise(0), 0)
    with pytest.raises(FloatingPointError):
        argmax(torch.full((3,), -torch.inf))


def test_draw_index_never_picks_weight_zero() -> None:
    """B056, and uniforms at both ends of [0, 1)."""
    weights = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0], dtype=torch.float64)
    assert draw_index(weights, 0.0) == 1
    assert draw_index(weights, 1 - 2**-53) == 3
    for weights in (torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])):
        for u in np.linspace(0, 1, 200, endpoint=False):
            assert weights[draw_index(weights.double(), float(u))] > 0


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_draw_index_refuses_weights_without_a_law(bad: list[float]) -> None:
    with pytest.raises(FloatingPointError, match="positive finite sum"):
        draw_index(torch.tensor(bad, dtype=torch.float64), 0.5)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
def test_draw_index_on_a_stratified_grid(counts: list[int]) -> None:
    total = sum(counts)
    grid = [(i + 0.5) / (4 * total) for i in range(4 * total)]
    drawn = [draw_index(torch.tensor(counts, dtype=torch.float64), u) for u in grid]
    assert np.bincount(drawn, minlength=len(counts)).tolist() == [4 * c for c in counts]


def test_keyed_chance_uses_every_uniform_once() -> None:
    asked = []

    class Source:
        def uniform(self, position: int, role: int, index: int = 0) -> float:
            asked.append((position, role, index))
            return 0.0

    chance = KeyedChance(Source(), 17)
    assert chance.accept(0.1) and not chance.accept(0.0)
    assert chance.draw(torch.tensor([0.0, 1.0])) == 1
    assert len(set(asked)) == 3 and {position for position, _, _ in asked} == {17}


def test_torch_multinomial_guard() -> None:
    """B056: the pinned torch itself must not pick weight 0."""
    assert (torch.tensor([[0.0, 1.0]]).expand(100_000, 2).multinomial(1) == 1).all()
