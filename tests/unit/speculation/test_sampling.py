"""Logits processors: transformers' own as the reference, paths, counting rules, bad numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdist.protocol.request import SamplingParams
from specdist.speculation.sampling import (
    SamplingState,
    adjusted_logits,
    log_probs,
    raw_logprobs,
    scores,
)


def make_logits(rows: int, vocab: int, seed: int, grid: float | None = None) -> torch.Tensor:
    """Random rows; with ``grid`` they are rounded to it, so that ties abound."""
    logits = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return logits if grid is None else (logits / grid).round() * grid


def reference(logits: torch.Tensor, params: SamplingParams, prefix: list[int]) -> torch.Tensor:
    chain = LogitsProcessorList()
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1:
        chain.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    ids = torch.tensor([prefix] * len(logits), dtype=torch.long).reshape(len(logits), -1)
    return torch.log_softmax(chain(ids, logits.clone()), dim=-1)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 50, 10_000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
)


@settings(max_examples=100, deadline=None)
@given(PARAMS, st.integers(0, 10**6), st.lists(st.integers(0, 99), max_size=10), st.data())
def test_equals_transformers(params, seed, tokens, data) -> None:
    """Prefix = prompt + answer + path, split anywhere."""
    cuts = sorted(data.draw(st.tuples(*[st.integers(0, len(tokens))] * 2)))
    prompt, answer, path = tokens[: cuts[0]], tokens[cuts[0] : cuts[1]], tokens[cuts[1] :]
    logits = make_logits(3, 100, seed)
    if params.repetition_penalty != 1 and not tokens:
        return
    state = SamplingState(params, prompt, answer_tokens=answer)
    got, want = log_probs(logits, state, [path] * 3), reference(logits, params, tokens)
    assert torch.equal(got > -torch.inf, want > -torch.inf)
    kept = want > -torch.inf
    assert torch.allclose(got[kept], want[kept], atol=2e-5)


@pytest.mark.parametrize("top_k", [1, 3, 17])
def test_top_k_ties_equal_transformers(top_k: int) -> None:
    params = SamplingParams(top_k=top_k)
    logits = make_logits(40, 60, 1, grid=1.0)
    got, want = log_probs(logits, SamplingState(params)), reference(logits, params, [])
    assert torch.allclose(got.exp(), want.exp(), atol=1e-6)


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_ties_equal_transformers(min_p: float) -> None:
    params = SamplingParams(min_p=min_p)
    logits = make_logits(40, 60, 2, grid=1.0)
    got, want = log_probs(logits, SamplingState(params)), reference(logits, params, [])
    assert torch.allclose(got.exp(), want.exp(), atol=1e-6)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.83, 0.97])
def test_top_p_ties_keep_as_many_as_transformers_lowest_ids_first(top_p: float) -> None:
    params = SamplingParams(top_p=top_p)
    logits = make_logits(40, 60, 3, grid=1.0)
    got, want = log_probs(logits, SamplingState(params)), reference(logits, params, [])
    for row, ours, theirs in zip(logits, got, want, strict=True):
        kept = ours > -torch.inf
        assert int(kept.sum()) == int((theirs > -torch.inf).sum())
        last = row[kept].min()
        tied = torch.nonzero(row == last).squeeze(1)
        assert kept[row > last].all()
        assert kept[tied].tolist() == sorted(kept[tied].tolist(), reverse=True)


def test_top_p_on_a_wide_vocabulary_sorts_all_only_when_it_must() -> None:
    for scale in (0.01, 1.0, 5.0):
        logits = scale * torch.randn(2, 49152, generator=torch.Generator().manual_seed(5))
        for top_p in (0.3, 0.95):
            params = SamplingParams(top_p=top_p)
            got, want = log_probs(logits, SamplingState(params)), reference(logits, params, [])
            # Rounding of a cumulated float32 sum may move the edge by a token in thousands.
            differ = int(((got > -torch.inf) != (want > -torch.inf)).sum())
            assert differ <= 2e-3 * int((want > -torch.inf).sum())


def test_default_is_log_softmax_and_leaves_the_logits_alone() -> None:
    logits = make_logits(4, 50, 6)
    before = logits.clone()
    state = SamplingState(SamplingParams(), [1, 2], [2])
    assert scores(logits, state) is logits
    assert torch.equal(log_probs(logits, state), torch.log_softmax(before, -1))
    busy = SamplingParams(
        temperature=0.5, top_k=9, top_p=0.9, min_p=0.1, logit_bias=((3, 5.0),), min_tokens=4,
        repetition_penalty=1.2, presence_penalty=1.0, frequency_penalty=0.5,
    )  # fmt: skip
    log_probs(logits, SamplingState(busy, [1, 2], [2], [3]), [[4], [], [5, 5], []])
    assert torch.equal(logits, before)


def test_greedy_is_one_hot_at_the_lowest_argmax() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0], [2.0, 1.0, 0.0]])
    state = SamplingState(SamplingParams(temperature=0, top_k=2, top_p=0.5))
    inf = float("inf")
    assert log_probs(logits, state).tolist() == [[-inf, 0.0, -inf], [0.0, -inf, -inf]]


@pytest.mark.parametrize("temperature", [1e-8, 1e-3])
def test_tiny_temperature_does_not_overflow(temperature: float) -> None:
    got = log_probs(
        make_logits(3, 20, 7) * 100, SamplingState(SamplingParams(temperature=temperature))
    )
    assert not got.isnan().any() and torch.allclose(got.exp().sum(-1), torch.ones(3))


def test_presence_and_frequency_count_the_answer_and_the_path_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    state = SamplingState(params, prompt_tokens=[0, 0, 1])
    state.commit([1, 2, 2])
    got = adjusted_logits(torch.zeros(2, 5), state, [(), (2, 3)])
    assert got[0].tolist() == [0, -0.75, -1.0, 0, 0]
    assert got[1].tolist() == [0, -0.75, -1.25, -0.75, 0]


def test_repetition_counts_prompt_answer_and_path_once() -> None:
    state = SamplingState(SamplingParams(repetition_penalty=2.0), [0], answer_tokens=[1, 1])
    logits = torch.tensor([[4.0, -4.0, 4.0, 4.0]])
    assert adjusted_logits(logits, state, [[0, 3, 3]]).tolist() == [[2.0, -8.0, 4.0, 2.0]]


def test_bias_comes_before_the_penalties() -> None:
    params = SamplingParams(logit_bias=((1, 6.0),), repetition_penalty=2.0)
    got = adjusted_logits(torch.tensor([[1.0, -2.0]]), SamplingState(params, [1]))
    assert got.tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match=r"logit_bias token must be in 0..1, got 2"):
        wrong = SamplingState(SamplingParams(logit_bias=((2, 1.0),)))
        adjusted_logits(torch.zeros(1, 2), wrong)


def test_min_tokens_bans_stop_tokens_along_each_path() -> None:
    """B022: nodes beyond min_tokens may stop, nodes before it may not."""
    params = SamplingParams(min_tokens=3, stop_token_ids=(4,))
    state = SamplingState(params, eos_token_ids=[2, 99])
    state.commit([7])
    got = adjusted_logits(torch.zeros(3, 5), state, [(), (1,), (1, 1)])
    assert (got == -torch.inf).nonzero().tolist() == [[0, 2], [0, 4], [1, 2], [1, 4]]
    state.commit([7, 7])
    assert not state.adjusts_logits


@settings(max_examples=40, deadline=None)
@given(PARAMS, st.lists(st.integers(0, 29), min_size=1, max_size=5), st.integers(0, 99))
def test_a_path_is_as_good_as_committed(params, path, seed) -> None:
    """A node's row equals the root's row once its path is committed: what makes trees exact."""
    logits = make_logits(1, 30, seed)
    state = SamplingState(params, [1, 2], [3], [4])
    ahead = log_probs(logits, state, [path])
    state.commit(path)
    assert torch.equal(ahead, log_probs(logits, state))


def test_rows_do_not_depend_on_their_batch() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, repetition_penalty=1.1)
    logits, paths = make_logits(6, 5000, 8), [(), (1,), (1, 2), (3,), (3, 3), (9,)]
    state = SamplingState(params, [5, 6], answer_tokens=[7])
    together = log_probs(logits, state, paths)
    for i in range(6):
        assert torch.equal(log_probs(logits[i : i + 1], state, paths[i : i + 1])[0], together[i])


def test_one_row_as_at_the_end_of_a_tree() -> None:
    """B053: a single row is still two-dimensional; one dimension is refused by name."""
    state = SamplingState(SamplingParams(temperature=0.1, top_p=0.9))
    assert log_probs(make_logits(1, 50, 9), state, [[1]]).shape == (1, 50)
    with pytest.raises(ValueError, match=r"logits must be \[rows, vocab\], got shape \(50,\)"):
        log_probs(torch.zeros(50), state)
    with pytest.raises(ValueError, match="one path per row is needed, got 1 for 2 rows"):
        log_probs(torch.zeros(2, 5), state, [[1]])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_name_the_row(temperature: float, bad: float) -> None:
    logits = make_logits(3, 10, 10)
    logits[1, 4] = bad
    with pytest.raises(FloatingPointError, match="row 1 of the logits"):
        log_probs(logits, SamplingState(SamplingParams(temperature=temperature)))
    with pytest.raises(FloatingPointError, match="row 1"):
        raw_logprobs(logits)


def test_no_token_left_is_an_error() -> None:
    state = SamplingState(SamplingParams(min_tokens=1), eos_token_ids=[0, 1])
    with pytest.raises(FloatingPointError, match="row 0"):
        log_probs(torch.zeros(1, 2), state)


def test_reduced_vocabulary_stays_reduced() -> None:
    """A draft with few output tokens has -inf elsewhere."""
    logits = torch.full((1, 100), -torch.inf)
    logits[0, [3, 50, 99]] = torch.tensor([1.0, 2.0, 0.5])
    for params in (SamplingParams(), SamplingParams(top_p=0.99, top_k=20, temperature=0.5)):
        law = log_probs(logits, SamplingState(params)).exp()[0]
        assert set(law.nonzero().squeeze(1).tolist()) == {3, 50, 99}


def test_bfloat16_logits_are_widened() -> None:
    logits = make_logits(2, 50, 11).bfloat16()
    got = log_probs(logits, SamplingState(SamplingParams(min_tokens=1)))
    assert got.dtype == torch.float32
    assert np.allclose(got.exp().sum(-1).numpy(), 1)
