"""Every rule of the registry: greedy, empty trees, bad numbers; lossless ones: the exact law."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from scipy import stats

from specdist.config import LOSSLESS_RULES
from specdist.config import RULES as CONFIG_RULES
from specdist.protocol.candidates import DraftRow
from specdist.speculation.draft_sampling import SparseRow, draw_without_replacement
from specdist.speculation.noise import Noise
from specdist.speculation.rules import RULES, get_rule
from specdist.speculation.tree import Tree
from tests.unit.speculation import exact_law as exact

NAMES = sorted(RULES)
LOSSLESS = [name for name in NAMES if RULES[name].lossless]
DRAWN = [name for name in LOSSLESS if RULES[name].needs_draft_probs]
TREE = Tree((1, 2, 0, 1, 2), (-1, -1, 0, 0, 3))


def module(name: str):
    return importlib.import_module(f"specdist.speculation.rules.{name}")


def rows_for(tree: Tree, vocab: int) -> dict[int, SparseRow]:
    row = SparseRow(tuple(range(vocab)), (1 / vocab,) * vocab)
    return {node: row for node in range(-1, len(tree)) if tree.children(node)}


def random_log_probs(tree: Tree, vocab: int, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(len(tree) + 1, vocab, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(logits, dim=-1)


def test_registry_agrees_with_the_settings() -> None:
    assert set(CONFIG_RULES) == set(RULES)
    assert set(LOSSLESS_RULES) == set(LOSSLESS)


def test_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"coupled, rejection, traversal, typical, got 'cupled'"):
        get_rule("cupled")


@pytest.mark.parametrize("name", NAMES)
def test_greedy_follows_the_argmax_path(name: str) -> None:
    for seed in range(20):
        choices = torch.randint(0, 3, (6,), generator=torch.Generator().manual_seed(seed))
        log_p = torch.full((6, 3), -torch.inf)
        log_p[torch.arange(6), choices] = 0.0
        got = RULES[name].load()(TREE, log_p, rows_for(TREE, 3), Noise(seed), 7)
        node, path = -1, []
        while (child := TREE.child_with_token(node, int(choices[node + 1]))) is not None:
            path.append(child)
            node = child
        assert got[:2] == (tuple(path), int(choices[node + 1]))


@pytest.mark.parametrize("name", NAMES)
def test_empty_tree_is_plain_decoding(name: str) -> None:
    verify = RULES[name].load()
    log_p = random_log_probs(Tree(), 4)
    results = [verify(Tree(), log_p, None, Noise(seed), 3) for seed in range(1500)]
    assert all(r.path == () and r.num_missing_rows == 0 for r in results)
    seen = np.bincount([r.next_token for r in results], minlength=4)
    assert (
        stats.chisquare(seen, log_p[0].exp().double().numpy() * 1500, sum_check=False).pvalue > 1e-4
    )


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_the_target_is_an_error(name: str) -> None:
    log_p = random_log_probs(TREE, 3)
    log_p[0, 1] = float("nan")
    with pytest.raises(FloatingPointError):
        RULES[name].load()(TREE, log_p, rows_for(TREE, 3), Noise(1), 0)


@pytest.mark.parametrize("name", NAMES)
def test_rows_must_fit_the_tree(name: str) -> None:
    with pytest.raises(ValueError, match=r"5 nodes needs 6 rows, got shape \(5, 3\)"):
        RULES[name].load()(TREE, torch.zeros(5, 3), None, Noise(1), 0)


@pytest.mark.parametrize("name", NAMES)
def test_same_arguments_same_result(name: str) -> None:
    verify, log_p, rows = RULES[name].load(), random_log_probs(TREE, 3), rows_for(TREE, 3)
    for seed in range(10):
        first = verify(TREE, log_p, rows, Noise(seed), 5)
        assert verify(TREE, log_p, rows, Noise(seed), 5) == first


@pytest.mark.parametrize("shape", exact.SHAPES)
@pytest.mark.parametrize("name", DRAWN)
def test_exact_law(name: str, shape: str) -> None:
    decide = module(name).decide
    pattern = exact.SHAPES[shape]
    length = max(pattern.depths, default=0) + 1
    for label, (p, q) in exact.model_pairs().items():
        law = exact.output_law(decide, pattern, p, q)
        assert sum(law.values()) == pytest.approx(1, abs=1e-9), label
        assert exact.distance_from_target(law, p, length) < 1e-6, label


@pytest.mark.parametrize("name", DRAWN)
def test_exact_law_on_four_tokens(name: str) -> None:
    p, q = exact.random_model(11, 4, zeros=0.2), exact.random_model(12, 4, zeros=0.2)
    law = exact.output_law(module(name).decide, exact.SHAPES["2 then 1"], p, q)
    assert exact.distance_from_target(law, p, 3) < 1e-6


@pytest.mark.parametrize("name", DRAWN)
def test_exact_law_when_a_row_is_missing(name: str) -> None:
    """B104: a node without q is a leaf; counted, and the law stays exact."""
    p, q = exact.random_model(13, 3), exact.random_model(14, 3)
    counted = []

    def decide(tree, laws, chance):
        laws._draft_rows = {k: v for k, v in laws._draft_rows.items() if k == -1}
        result = module(name).decide(tree, laws, chance)
        counted.append(result.num_missing_rows)
        return result

    law = exact.output_law(decide, exact.SHAPES["2 then 2 and 1"], p, q)
    assert exact.distance_from_target(law, p, 3) < 1e-6
    assert max(counted) >= 1


BAD_ROWS = {
    "nan": SparseRow((0, 1, 2), (0.5, float("nan"), 0.5)),
    "inf": SparseRow((0, 1, 2), (0.5, float("inf"), 0.5)),
    "negative": SparseRow((0, 1, 2), (0.9, -0.4, 0.5)),
    "all zero": SparseRow((0, 1, 2), (0.0, 0.0, 0.0)),
    "child impossible": SparseRow((0, 2), (0.5, 0.5)),
    "repeated id": SparseRow((1, 1, 2), (0.3, 0.3, 0.4)),
    "id outside": SparseRow((1, 2, 3), (0.3, 0.3, 0.4)),
    "lengths differ": SparseRow((0, 1, 2), (0.5, 0.5)),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("name", DRAWN)
def test_unusable_draft_law_counts_as_missing(name: str, bad: str) -> None:
    """NaN in the draft never reaches p; nor does a child that q could not have drawn."""
    verify, tree = RULES[name].load(), Tree((1, 2), (-1, -1))
    log_p = random_log_probs(tree, 3, seed=4)
    results = [verify(tree, log_p, {-1: BAD_ROWS[bad]}, Noise(s), 9) for s in range(800)]
    assert all(r.path == () and r.num_missing_rows == 1 for r in results)
    seen = np.bincount([r.next_token for r in results], minlength=3)
    assert (
        stats.chisquare(seen, log_p[0].exp().double().numpy() * 800, sum_check=False).pvalue > 1e-4
    )


@pytest.mark.parametrize("name", DRAWN)
def test_no_draft_laws_at_all(name: str) -> None:
    got = RULES[name].load()(TREE, random_log_probs(TREE, 3), None, Noise(0), 1)
    assert got.path == () and got.num_missing_rows == 1


@pytest.mark.parametrize("name", DRAWN)
def test_takes_the_record_that_travels(name: str) -> None:
    """``protocol.DraftRow`` works as it is."""
    rows = {-1: DraftRow(-1, (0, 1), (0.5, 0.5))}
    log_p = torch.log(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    got = RULES[name].load()(Tree.chain([1]), log_p, rows, Noise(0), 1)
    assert got == ((0,), 2, 0)  # p = q: always accepted


class Uniforms:
    """Noise whose uniforms are given."""

    def __init__(self, *values: float) -> None:
        self.values = iter(values)

    def uniform(self, position: int, role: int, index: int = 0) -> float:
        return next(self.values, 0.5)


@pytest.mark.parametrize("name", DRAWN)
def test_uniform_of_exactly_zero_does_not_accept_the_impossible(name: str) -> None:
    """B057: u = 0 against p(x) = 0."""
    log_p = torch.log(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    rows = {-1: SparseRow((0, 1), (1.0, 0.0))}
    got = RULES[name].load()(Tree.chain([0]), log_p, rows, Uniforms(*[0.0] * 9), 0)
    assert got == ((), 1, 0)


@pytest.mark.parametrize("name", DRAWN)
def test_grid_of_uniforms(name: str) -> None:
    """The same law through ``verify`` and stratified uniforms instead of branches."""
    p, q, n = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), 40
    log_p = torch.log(torch.tensor(np.array([p, p])))
    rows = {-1: SparseRow((0, 1, 2), tuple(q))}
    law = np.zeros(3)
    grid = (np.arange(n) + 0.5) / n
    for child in range(3):
        for u in grid:
            for v in grid:
                values = (u, v) if name == "rejection" else (u, 0.5, v)
                got = RULES[name].load()(Tree.chain([child]), log_p, rows, Uniforms(*values), 0)
                if not got.path and name == "traversal":  # leaf, root (certain), draw
                    assert got.next_token != 2
                law[child if got.path else got.next_token] += q[child] / n**2
    assert np.abs(law - p).max() < 1.5 / n


@pytest.mark.parametrize("name", DRAWN)
def test_law_over_several_steps(name: str) -> None:
    """Positions tested in one step and decided in a later one must meet fresh numbers."""
    p, q = exact.random_model(21, 2), exact.random_model(22, 2)
    verify, length, runs = RULES[name].load(), 3, 1500
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(runs):
        noise, tokens, nonce = Noise(seed), (), 0
        while len(tokens) < length:
            drafted, rows = [], {}
            for i in range(2):
                law = torch.log(torch.tensor(q((*tokens, *drafted)))).float()
                draw = draw_without_replacement(law, 1, noise, len(tokens) + i, nonce)
                rows[i - 1], nonce = draw.row, nonce + 1
                drafted.append(draw.token_ids[0])
            tree = Tree.chain(drafted)
            log_p = exact.target_rows(tree, lambda path, done=tokens: p((*done, *path)))
            got = verify(tree, log_p, rows, noise, len(tokens))
            tokens = (*tokens, *(tree.tokens[i] for i in got.path), got.next_token)
        seen[tokens[:length]] = seen.get(tokens[:length], 0) + 1
    want = exact.completed({(): 1.0}, p, length)
    keys = sorted(want)
    observed = [seen.get(k, 0) for k in keys]
    assert stats.chisquare(observed, [want[k] * runs for k in keys]).pvalue > 1e-4


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_bad_draft_is_hardly_accepted(name: str) -> None:
    """B057: a draft that draws uniformly from 1,000 tokens, 200 steps."""
    vocab, accepted = 1000, 0
    uniform = torch.full((vocab,), -float(np.log(vocab)))
    for seed in range(200):
        noise = Noise(seed)
        draw = draw_without_replacement(uniform, 1, noise, 4, nonce=0, max_support=vocab)
        tree = Tree.chain(draw.token_ids)
        log_p = torch.log_softmax(
            8 * torch.randn(2, vocab, generator=torch.Generator().manual_seed(seed)), dim=-1
        )
        accepted += len(RULES[name].load()(tree, log_p, {-1: draw.row}, noise, 4).path)
    assert accepted < 10
