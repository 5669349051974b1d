"""How a draft ranks and draws: exact top-k, the law sent is the law drawn from, bad rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specdist.protocol.request import SamplingParams
from specdist.speculation.draft_sampling import (
    _rank_on_device,
    best_tokens,
    draw_without_replacement,
    rank_children,
    ranking_log_probs,
    token_ranks,
)
from specdist.speculation.noise import Noise
from specdist.speculation.rules import rejection
from specdist.speculation.sampling import SamplingState
from specdist.speculation.selection import gumbel_argmax
from specdist.speculation.tree import Tree


def log_law(vocab: int, seed: int, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(scale * torch.randn(vocab, generator=generator), dim=-1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([4, 60, 3000]),
    st.sampled_from([0.0, 1e-9, 0.2, 0.6, 1.0, 3.0]),
    st.integers(1, 4),
    st.floats(0.01, 40),
)
def test_ranking_is_the_full_top_k(seed, vocab, lam, k, scale) -> None:
    rows = torch.stack([log_law(vocab, seed + i, scale) for i in range(3)])
    positions, noise = [8, 9, 8], Noise(seed)
    got = rank_children(rows, noise, positions, lam, k)
    full = rows.double() + lam * noise.gumbel_rows(positions, vocab)
    values, ids = torch.sort(full, dim=-1, descending=True, stable=True)
    assert torch.equal(got.token_ids, ids[:, :k])
    assert torch.allclose(got.scores, values[:, :k], rtol=0, atol=1e-12)
    assert torch.equal(got.log_q, rows.gather(1, got.token_ids))


@pytest.mark.parametrize("lam", [0.0, 0.6])
def test_both_roads_rank_alike(lam: float) -> None:
    """The tensor road, which other devices take, against the one that prunes."""
    rows = torch.stack([log_law(500, i) for i in range(3)])
    rows[1, 4] = float("nan")
    pruned = rank_children(rows, Noise(2), [1, 2, 3], lam, 4)
    full = _rank_on_device(rows, Noise(2), [1, 2, 3], [lam] * 3, 4)
    assert torch.equal(pruned.token_ids[[0, 2]], full.token_ids[[0, 2]])
    assert torch.equal(pruned.scores, full.scores) and torch.equal(pruned.log_q, full.log_q)


def test_one_lambda_per_row() -> None:
    rows = log_law(100, 1).expand(2, 100)
    got = rank_children(rows, Noise(1), [3, 3], torch.tensor([0.0, 1.0]), 3)
    for i, lam in enumerate((0.0, 1.0)):
        alone = rank_children(rows[:1], Noise(1), [3], lam, 3)
        assert torch.equal(got.token_ids[i], alone.token_ids[0])


def test_full_trust_in_a_perfect_draft_finds_the_targets_token() -> None:
    """q = p: the first child is the token that ``coupled`` will choose, always."""
    row = log_law(5000, 2)
    for seed in range(30):
        first = rank_children(row[None], Noise(seed), [seed], 1.0, 1).token_ids
        assert int(first) == gumbel_argmax(row, Noise(seed), seed)


def test_fewer_tokens_than_children_are_marked() -> None:
    row = torch.full((1, 9), -torch.inf)
    row[0, [2, 5]] = torch.log(torch.tensor([0.25, 0.75]))
    for lam in (0.0, 0.5, 1.0):
        got = rank_children(row, Noise(0), [1], lam, 4)
        assert set(got.token_ids[0, :2].tolist()) == {2, 5}
        assert got.scores[0].isfinite().tolist() == [True, True, False, False]
        assert got.log_q[0].isfinite().tolist() == [True, True, False, False]


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_nan_in_a_row_yields_no_candidate_and_spares_the_others(lam: float) -> None:
    rows = torch.stack([log_law(50, 3), log_law(50, 4)])
    rows[0, 7] = float("nan")
    got = rank_children(rows, Noise(0), [1, 1], lam, 3)
    assert got.scores[0].eq(-torch.inf).all() and got.log_q[0].eq(-torch.inf).all()
    assert got.scores[1].isfinite().all()
    assert draw_without_replacement(rows[0], 2, Noise(0), 1, 0) == ((), ((), ()))


def test_arguments_are_checked() -> None:
    rows = log_law(5, 0)[None]
    with pytest.raises(ValueError, match="one position per row is needed, got 2 for 1"):
        rank_children(rows, Noise(0), [1, 2], 1.0, 1)
    with pytest.raises(ValueError, match=r"k must be in 1..5, got 6"):
        rank_children(rows, Noise(0), [1], 1.0, 6)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 10))
def test_best_tokens_ties_to_the_lowest_id(values: list[int], k: int) -> None:
    row = np.array(values, dtype=np.float32)
    want = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert best_tokens(row, k).tolist() == want


def test_drawn_tokens_follow_the_law_that_is_sent() -> None:
    """B047, B055: first and second draw fit q and q without the first."""
    row, runs = log_law(6, 5).bfloat16().float(), 6000
    draws = [draw_without_replacement(row, 2, Noise(3), 10, nonce) for nonce in range(runs)]
    assert len({d.row for d in draws}) == 1
    sent = dict(zip(*draws[0].row, strict=True))
    pairs = {(a, b): sent[a] * sent[b] / (1 - sent[a]) for a in sent for b in sent if a != b}
    seen = dict.fromkeys(pairs, 0)
    for draw in draws:
        seen[draw.token_ids] += 1
    want = [pairs[key] * runs for key in pairs]
    assert stats.chisquare([seen[key] for key in pairs], want).pvalue > 1e-4


def test_draws_over_positions_and_seeds_are_independent() -> None:
    row = log_law(4, 6)
    by_position = [
        draw_without_replacement(row, 1, Noise(1), i, 0).token_ids[0] for i in range(4000)
    ]
    table = np.zeros((4, 4))
    np.add.at(table, (by_position[:-1], by_position[1:]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_cut_support_is_the_law_itself() -> None:
    row = log_law(1000, 7)
    draw = draw_without_replacement(row, 4, Noise(0), 2, 0, max_support=16)
    assert len(draw.row.token_ids) == 16 and sum(draw.row.probs) == pytest.approx(1)
    assert set(draw.row.token_ids) == set(row.topk(16).indices.tolist())
    assert set(draw.token_ids) <= set(draw.row.token_ids) and len(set(draw.token_ids)) == 4
    one_hot = torch.full((9,), -torch.inf)
    one_hot[3] = 0.0
    assert draw_without_replacement(one_hot, 4, Noise(0), 2, 0) == ((3,), ((3,), (1.0,)))


def test_law_on_a_thousand_tokens_with_a_bfloat16_draft() -> None:
    """B055: the output keeps the target's law; buckets of tokens, one rejection step each."""
    vocab, runs = 1000, 2000
    log_p = log_law(vocab, 8)
    log_q = (log_p + 0.7 * log_law(vocab, 9)).bfloat16().float()
    seen = np.zeros(10)
    for seed in range(runs):
        draw = draw_without_replacement(log_q, 2, Noise(seed), 0, 0)
        tree = Tree(draw.token_ids, (-1, -1))
        got = rejection.verify(tree, log_p.expand(3, vocab), {-1: draw.row}, Noise(seed), 0)
        token = tree.tokens[got.path[0]] if got.path else got.next_token
        seen[token % 10] += 1
    law = log_p.double().exp().numpy()
    want = np.array([law[i::10].sum() for i in range(10)])
    assert stats.chisquare(seen, want / want.sum() * runs).pvalue > 1e-4


def test_token_ranks() -> None:
    row, noise = log_law(300, 10), Noise(4)
    for lam in (0.0, 0.4, 1.0):
        order = rank_children(row[None], noise, [6], lam, 20).token_ids[0].tolist()
        assert [token_ranks(row, noise, 6, t, [lam])[0] for t in order] == list(range(20))


def test_greedy_sessions_still_rank_second_guesses() -> None:
    state = SamplingState(SamplingParams(temperature=0, min_tokens=1), eos_token_ids=[0])
    got = ranking_log_probs(torch.tensor([[9.0, 1.0, 2.0]]), state)
    assert got.argsort(descending=True).tolist() == [[2, 1, 0]] and got[0, 1] > -5
    sampled = SamplingState(SamplingParams(top_k=1))
    assert ranking_log_probs(torch.tensor([[9.0, 1.0]]), sampled).tolist() == [[0.0, -torch.inf]]
