"""The rules one by one; the exact law of all of them is in tests/contracts/test_rules.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdist.protocol.request import SamplingParams
from specdist.speculation.draft_sampling import SparseRow
from specdist.speculation.noise import Noise
from specdist.speculation.rules import coupled, rejection, traversal, typical
from specdist.speculation.rules.base import Laws
from specdist.speculation.sampling import SamplingState, log_probs
from specdist.speculation.tree import Tree
from tests.unit.speculation import exact_law as exact
from tests.unit.speculation.test_tree import trees

VOCAB = 6


def model_logits(prefix: tuple[int, ...]) -> torch.Tensor:
    """A target: logits that depend on the whole prefix."""
    rng = np.random.default_rng([7, *prefix])
    return torch.tensor(2 * rng.standard_normal(VOCAB), dtype=torch.float32)


def tree_logits(prefix: tuple[int, ...], tree: Tree) -> torch.Tensor:
    paths = [tree.path_tokens(node) for node in range(-1, len(tree))]
    return torch.stack([model_logits((*prefix, *path)) for path in paths])


def decode(params: SamplingParams, seed: int, length: int, tree_at) -> list[int]:
    """Generate with ``coupled``; ``tree_at(position)`` gives the candidates of a step."""
    prompt = [1, 2]
    tokens, state = list(prompt), SamplingState(params, prompt, [5])
    while len(tokens) < length:
        tree = tree_at(len(tokens))
        logits = tree_logits(tuple(tokens), tree)
        got = coupled.verify_logits(tree, logits, state, Noise(seed), len(tokens))
        paths = [tree.path_tokens(node) for node in range(-1, len(tree))]
        rows = log_probs(logits, state, paths)
        assert coupled.verify(tree, rows, None, Noise(seed), len(tokens)) == got
        new = [*(tree.tokens[i] for i in got.path), got.next_token]
        tokens += new
        state.commit(new)
    return tokens[:length]


SETTINGS = st.sampled_from(
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(top_k=2, min_p=0.1, frequency_penalty=0.7),
        SamplingParams(min_tokens=6, logit_bias=((3, 1.0),)),
    ]
)


@settings(max_examples=40, deadline=None)
@given(SETTINGS, st.integers(0, 10**6), st.data())
def test_coupled_gives_the_tokens_of_plain_decoding(params, seed, data) -> None:
    plain = decode(params, seed, 10, lambda position: Tree())
    many = decode(params, seed, 10, lambda position: data.draw(trees(8, VOCAB)))
    assert many == plain
    oracle = decode(params, seed, 10, lambda position: Tree.chain(plain[position:]))
    assert oracle == plain


def test_coupled_accepts_the_whole_right_path() -> None:
    plain = decode(SamplingParams(), 3, 8, lambda position: Tree())
    tree = Tree.merge(Tree.chain([0, 0, 0]), Tree.chain(plain[2:7])).tree
    got = coupled.verify_logits(
        tree, tree_logits((1, 2), tree), SamplingState(SamplingParams(), [1, 2]), Noise(3), 2
    )
    assert [tree.tokens[i] for i in got.path] == plain[2:7] and got.next_token == plain[7]


def test_coupled_looks_only_at_the_rows_it_needs() -> None:
    tree = Tree((0, 1), (-1, -1))
    logits = torch.tensor([[0.0, 9.0], [float("nan")] * 2, [3.0, 1.0]])
    state = SamplingState(SamplingParams(temperature=0))
    assert coupled.verify_logits(tree, logits, state, Noise(0), 1) == ((1,), 0, 0)
    logits[0, 0] = float("nan")
    with pytest.raises(FloatingPointError):
        coupled.verify_logits(tree, logits, state, Noise(0), 1)


def block_verification(p, q, tokens: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Law of the emitted tokens on a drafted chain, after Sun et al. 2403.10444, algorithm 2."""
    gamma, weight = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        ratio = p(tokens[:i])[token] / q(tokens[:i])[token]
        weight.append(min(1.0, weight[-1] * ratio))
    law: dict[tuple[int, ...], float] = {}
    left = 1.0
    for i in range(gamma, -1, -1):
        if i == gamma:
            chance, rest = weight[i], p(tokens)
        else:
            rest = np.maximum(weight[i] * p(tokens[:i]) - q(tokens[:i]), 0)
            mass = rest.sum()
            chance = 1.0 if i == 0 else mass / (mass + 1 - weight[i])
            rest = rest / mass if mass > 0 else p(tokens[:i])
        for x, px in enumerate(rest):
            key = (*tokens[:i], x)
            law[key] = law.get(key, 0.0) + left * chance * px
        left *= 1 - chance
    return law


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_traversal_on_a_chain_is_block_verification(length: int, seed: int) -> None:
    p, q = exact.random_model(seed, 3), exact.random_model(seed + 50, 3)
    for _, tree, rows in exact.draft_trees(Tree.chain([0] * length), q):
        want = block_verification(p, q, tree.tokens)
        got: dict[tuple[int, ...], float] = {}
        log_p = exact.target_rows(tree, p)
        for chance, result in exact.outcomes(
            lambda c, t=tree, lp=log_p, r=rows: traversal.decide(t, Laws(t, lp, r), c)
        ):
            key = (*(tree.tokens[i] for i in result.path), result.next_token)
            got[key] = got.get(key, 0.0) + chance
        for key in got.keys() | want.keys():
            assert got.get(key, 0.0) == pytest.approx(want.get(key, 0.0), abs=1e-9)


def mean_accepted(decide, shape: Tree, p, q) -> float:
    law = exact.output_law(decide, shape, p, q)
    return sum((len(tokens) - 1) * weight for tokens, weight in law.items())


@pytest.mark.parametrize("shape", ["chain 2", "chain 3", "2 then 1"])
def test_traversal_accepts_at_least_as_much_as_rejection(shape: str) -> None:
    for seed in range(3):
        p, q = exact.random_model(seed, 3), exact.random_model(seed + 9, 3)
        better = mean_accepted(traversal.decide, exact.SHAPES[shape], p, q)
        assert better >= mean_accepted(rejection.decide, exact.SHAPES[shape], p, q) - 1e-9


def test_rejection_on_one_child_accepts_one_minus_the_distance() -> None:
    p, q = exact.constant(5, 3, 2), exact.constant(1, 1, 8)
    got = mean_accepted(rejection.decide, exact.SHAPES["chain 1"], p, q)
    assert got == pytest.approx(np.minimum(p(()), q(())).sum())


def test_deep_chain_and_wide_tree_through_verify() -> None:
    """No recursion limit, and equal laws are always accepted to the end."""
    law = torch.log_softmax(torch.randn(8, generator=torch.Generator().manual_seed(0)), 0)
    row = SparseRow(tuple(range(8)), tuple(law.double().exp().tolist()))
    tree = Tree.chain([i % 8 for i in range(1500)])
    rows = dict.fromkeys(range(-1, 1499), row)
    for rule in (rejection, traversal):
        got = rule.verify(tree, law.expand(1501, 8), rows, Noise(1), 0)
        assert got.path == tuple(range(1500))
    wide = Tree(tuple(range(8)), (-1,) * 8)
    for rule in (rejection, traversal):
        assert len(rule.verify(wide, law.expand(9, 8), {-1: row}, Noise(1), 0).path) == 1


def test_typical_keeps_what_is_plausible() -> None:
    log_p = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.9, 0.05, 0.05]]))
    tree = Tree((2, 1), (-1, 0))
    assert typical.verify(tree, log_p, None, Noise(0), 0, epsilon=0.1, delta=0.5).path == (0, 1)
    assert typical.verify(tree, log_p, None, Noise(0), 0, epsilon=0.9, delta=0.9).path == ()


def test_typical_prefers_the_longest_path_then_the_first() -> None:
    log_p = torch.full((5, 4), float(np.log(0.25)))
    tree = Tree((0, 1, 2, 3), (-1, -1, 1, 1))
    assert typical.verify(tree, log_p, None, Noise(0), 0, epsilon=0.1).path == (1, 2)
