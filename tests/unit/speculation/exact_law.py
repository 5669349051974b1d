"""Exact law of a rule on a small vocabulary: all draft outcomes times all decisions.

Shared by the unit and the contract tests. Nothing is sampled: every random decision of a
rule becomes a branch with its exact probability.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from specdist.speculation.draft_sampling import SparseRow
from specdist.speculation.rules.base import Laws, Verification
from specdist.speculation.tree import ROOT, Tree

Model = Callable[[tuple[int, ...]], np.ndarray]  # prefix -> law
Law = dict[tuple[int, ...], float]


class BranchingChance:
    """A ``Chance`` that follows a script and notes which decisions had other outcomes."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.taken: list[tuple[int, list[float]]] = []

    def accept(self, probability: float) -> bool:
        assert -1e-12 <= probability <= 1 + 1e-12
        return self._branch([1 - probability, probability]) == 1

    def draw(self, weights: torch.Tensor) -> int:
        law = (weights / weights.sum()).tolist()
        assert min(law) >= 0
        return self._branch(law)

    def _branch(self, law: list[float]) -> int:
        at = len(self.taken)
        first = next(i for i, p in enumerate(law) if p > 0)
        outcome = self.script[at] if at < len(self.script) else first
        self.taken.append((outcome, law))
        return outcome


def outcomes(
    run: Callable[[BranchingChance], Verification],
) -> Iterator[tuple[float, Verification]]:
    """Every outcome of ``run`` with its probability."""
    script: list[int] = []
    while True:
        chance = BranchingChance(script)
        result = run(chance)
        yield float(np.prod([law[i] for i, law in chance.taken])), result
        script = _next_script(chance.taken)
        if not script:
            return


def _next_script(taken: list[tuple[int, list[float]]]) -> list[int]:
    for depth in reversed(range(len(taken))):
        outcome, law = taken[depth]
        later = [i for i in range(outcome + 1, len(law)) if law[i] > 0]
        if later:
            return [i for i, _ in taken[:depth]] + later[:1]
    return []


def draft_trees(shape: Tree, q: Model) -> Iterator[tuple[float, Tree, dict[int, SparseRow]]]:
    """Every tree of this shape that drawing without replacement from q can give.

    ``shape`` gives the number of children; where q has fewer tokens, so has the node.
    """
    yield from _grow(shape, q, [(ROOT, ROOT)], [], [], {}, 1.0)


def _grow(shape, q, queue, tokens, parents, rows, weight):
    if not queue:
        yield weight, Tree(tuple(tokens), tuple(parents)), dict(rows)
        return
    (pattern, node), rest = queue[0], queue[1:]
    wanted = shape.children(pattern)
    law = q(_prefix(tokens, parents, node))
    count = min(len(wanted), int((law > 0).sum()))
    if not count:
        yield from _grow(shape, q, rest, tokens, parents, rows, weight)
        return
    row = SparseRow(tuple(range(len(law))), tuple(law.tolist()))
    for drawn in itertools.permutations(np.flatnonzero(law > 0).tolist(), count):
        chance, left = 1.0, 1.0
        for token in drawn:
            chance *= law[token] / left
            left -= law[token]
        if len(drawn) == int((law > 0).sum()) and len(drawn) > 1:  # the last draw is certain
            chance /= law[drawn[-1]] / (left + law[drawn[-1]])
        new = list(range(len(tokens), len(tokens) + count))
        yield from _grow(
            shape,
            q,
            rest + list(zip(wanted, new, strict=False)),
            tokens + list(drawn),
            parents + [node] * count,
            {**rows, node: row},
            weight * chance,
        )


def _prefix(tokens, parents, node) -> tuple[int, ...]:
    path = []
    while node != ROOT:
        path.append(tokens[node])
        node = parents[node]
    return tuple(reversed(path))


def target_rows(tree: Tree, p: Model) -> torch.Tensor:
    """[len(tree) + 1, vocab] log p, float64 so that rounding does not hide a bias."""
    rows = [p(tree.path_tokens(node)) for node in range(ROOT, len(tree))]
    return torch.log(torch.tensor(np.array(rows)))


def output_law(
    decide: Callable[[Tree, Laws, BranchingChance], Verification], shape: Tree, p: Model, q: Model
) -> Law:
    """Law of what one verification emits: accepted tokens, then the next one."""
    law: Law = {}
    for weight, tree, rows in draft_trees(shape, q):
        log_p = target_rows(tree, p)

        def run(chance, tree=tree, log_p=log_p, rows=rows):
            return decide(tree, Laws(tree, log_p, rows), chance)

        for chance, result in outcomes(run):
            emitted = (*(tree.tokens[i] for i in result.path), result.next_token)
            law[emitted] = law.get(emitted, 0.0) + weight * chance
    return law


def completed(law: Law, p: Model, length: int) -> Law:
    """The law of the first ``length`` tokens when plain decoding goes on after the step."""
    full: Law = {}
    pending = list(law.items())
    while pending:
        tokens, weight = pending.pop()
        if weight == 0:
            continue
        if len(tokens) >= length:
            full[tokens[:length]] = full.get(tokens[:length], 0.0) + weight
            continue
        pending += [((*tokens, x), weight * px) for x, px in enumerate(p(tokens)) if px > 0]
    return full


def distance_from_target(law: Law, p: Model, length: int) -> float:
    """Largest difference between the completed law and the target's own."""
    got, want = completed(law, p, length), completed({(): 1.0}, p, length)
    return max(abs(got.get(k, 0.0) - want.get(k, 0.0)) for k in got.keys() | want.keys())


def random_model(seed: int, vocab: int, zeros: float = 0.0) -> Model:
    """A law per prefix, reproducible, with about a share ``zeros`` of impossible tokens."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def law(prefix: tuple[int, ...]) -> np.ndarray:
        if prefix not in known:
            rng = np.random.default_rng([seed, *(t + 1 for t in prefix)])
            weights = rng.gamma(0.7, size=vocab) * (rng.random(vocab) >= zeros)
            weights[rng.integers(vocab)] += 0.05
            known[prefix] = weights / weights.sum()
        return known[prefix]

    return law


def constant(*weights: float) -> Model:
    """The same law after every prefix."""
    return lambda prefix: np.array(weights) / sum(weights)


def model_pairs() -> dict[str, tuple[Model, Model]]:
    """(p, q) pairs over 3 tokens that have broken rules before."""
    same = random_model(5, 3)
    return {
        "random": (random_model(1, 3), random_model(2, 3)),
        "close": (constant(5, 3, 2), constant(4, 4, 2)),
        "zeros": (random_model(3, 3, zeros=0.4), random_model(4, 3, zeros=0.4)),
        "equal": (same, same),
        "disjoint": (constant(1, 1, 0), constant(0, 0, 1)),
        "half disjoint": (constant(1, 2, 0), constant(0, 1, 3)),
        "one-hot p": (constant(0, 1, 0), random_model(6, 3)),
        "one-hot q": (random_model(7, 3), constant(0, 0, 1)),
        "both one-hot": (constant(0, 1, 0), constant(0, 1, 0)),
        "one-hot apart": (constant(0, 1, 0), constant(1, 0, 0)),
    }


SHAPES = {
    "empty": Tree(),
    "chain 1": Tree.chain([0]),
    "chain 2": Tree.chain([0, 1]),
    "chain 3": Tree.chain([0, 1, 2]),
    "wide 2": Tree((0, 1), (-1, -1)),
    "wide 3": Tree((0, 1, 2), (-1, -1, -1)),
    "2 then 1": Tree((0, 1, 0), (-1, -1, 0)),
    "1 then 2": Tree((0, 0, 1), (-1, 0, 0)),
    "2 then 2 and 1": Tree((0, 1, 0, 1, 0), (-1, -1, 0, 0, 1)),
    "deep and wide": Tree((0, 0, 1, 0), (-1, 0, -1, 1)),
}
