"""Noise: the same numbers everywhere, uniform, independent across keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specdist.speculation import noise as module
from specdist.speculation.noise import ACCEPT, DRAFT, GUMBEL, MAX_GUMBEL, NEXT, Noise

N = 20_000
KNOWN_UNIFORM = 0.8167603804296304
KNOWN_BITS = [222177559, 1639490134, 1698080457]


def reference_bits(token: int, key: int) -> int:
    """The hash in plain integers."""
    x = (token + key) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= key >> 32
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def gumbel(seed: int, position: int, n: int = N) -> np.ndarray:
    return Noise(seed).gumbel(position, torch.arange(n)).numpy()


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6), st.lists(st.integers(0, 2**20)))
def test_bits_are_the_reference_on_every_road(seed: int, position: int, ids: list[int]) -> None:
    noise = Noise(seed)
    key = noise.key(position, GUMBEL)
    want = [reference_bits(token, key) for token in ids]
    tokens = torch.tensor(ids, dtype=torch.int64)
    assert noise.bits(position, tokens).tolist() == want
    assert module.hash_tensor(tokens, key).tolist() == want


def test_known_values_do_not_move() -> None:
    """Seeded answers must survive an upgrade: these numbers are part of the interface."""
    assert Noise(42).uniform(7, ACCEPT, 3) == KNOWN_UNIFORM
    assert Noise(42).bits(7, torch.tensor([0, 1, 49151])).tolist() == KNOWN_BITS


def test_any_batch_gives_the_same_numbers() -> None:
    noise = Noise(9)
    rows = noise.gumbel_rows([4, 5, 4, 1000], 49152)
    assert torch.equal(rows[0], rows[2])
    for token in (0, 1, 17, 49151):
        for i, position in enumerate([4, 5, 4, 1000]):
            assert noise.gumbel(position, torch.tensor([token]))[0] == rows[i, token]
    some = torch.tensor([[3, 40000], [7, 3]])
    assert torch.equal(noise.gumbel(5, some), rows[1][some])
    assert noise.gumbel_rows([], 5).shape == (0, 5)
    assert np.array_equal(noise.row_bits(5, 49152), noise.bits(5, torch.arange(49152)).numpy())


def test_all_bits_of_a_row_differ() -> None:
    for seed in range(5):
        assert len(np.unique(Noise(seed).row_bits(3, 200_000))) == 200_000


@pytest.mark.parametrize(("seed", "position"), list(itertools.product((0, 1, 2**63), (0, 1, 8191))))
def test_gumbel_law(seed: int, position: int) -> None:
    values = gumbel(seed, position)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > 1e-4
    assert values.max() <= MAX_GUMBEL < 22.88


def test_uniform_law_over_each_argument() -> None:
    noise = Noise(3)
    for draws in (
        [noise.uniform(i, ACCEPT) for i in range(N)],
        [noise.uniform(5, ACCEPT, i) for i in range(N)],
        [Noise(i).uniform(5, NEXT) for i in range(N)],
    ):
        assert stats.kstest(draws, "uniform").pvalue > 1e-4
        assert min(draws) >= 0 and max(draws) < 1


def test_each_bit_is_fair_over_neighbouring_ids_positions_and_seeds() -> None:
    tokens = torch.arange(N)
    rows = {
        "ids": Noise(0).bits(0, tokens).numpy(),
        "positions": np.array([int(Noise(0).bits(i, tokens[7])) for i in range(4000)]),
        "seeds": np.array([int(Noise(i).bits(0, tokens[7])) for i in range(4000)]),
    }
    for what, bits in rows.items():
        share = ((bits[:, None] >> np.arange(32)) & 1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 4.5 / 2 / np.sqrt(len(bits)), what


def test_no_correlation_between_neighbours() -> None:
    bound = 4.5 / np.sqrt(N)
    base = gumbel(7, 100)
    for other in (gumbel(7, 101), gumbel(7, 99), gumbel(8, 100), gumbel(7 + 2**32, 100)):
        assert abs(np.corrcoef(base, other)[0, 1]) < bound
    for shift in (1, 2, 3, 16, 256, 4096):
        assert abs(np.corrcoef(base[:-shift], base[shift:])[0, 1]) < 4.5 / np.sqrt(N - shift)
        assert abs(np.corrcoef(base[:-shift], gumbel(7, 101)[shift:])[0, 1]) < 1.1 * bound


def test_winners_at_neighbouring_positions_and_seeds_are_independent() -> None:
    """What sampling sees: the argmax over a small vocabulary, as a contingency table."""
    ids = torch.arange(6)
    by_position = [int(Noise(5).gumbel(i, ids).argmax()) for i in range(6000)]
    by_seed = [int(Noise(i).gumbel(5, ids).argmax()) for i in range(6000)]
    for winners in (by_position, by_seed):
        table = np.zeros((6, 6))
        np.add.at(table, (winners[:-1], winners[1:]), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-4
        assert stats.chisquare(np.bincount(winners)).pvalue > 1e-4


@settings(max_examples=50)
@given(st.integers(0, 2**63), st.integers(0, 2**20))
def test_roles_and_nonces_are_kept_apart(seed: int, position: int) -> None:
    noise, ids = Noise(seed), torch.arange(64)
    keys = {
        noise.key(position, role, nonce)
        for role in (GUMBEL, ACCEPT, NEXT, DRAFT)
        for nonce in range(5)
    }
    assert len(keys) == 20
    a, b = (noise.gumbel(position, ids, DRAFT, nonce) for nonce in (0, 1))
    assert not torch.equal(a, b)
