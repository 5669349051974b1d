"""rejection: accept a drawn child x with min(1, p(x) / q(x)), else draw from what q left.

Children were drawn from q without replacement, in the order in which they stand. After
a rejection p <- norm([p - q]+), q(x) <- 0, q <- norm(q). Lossless: on a chain Leviathan
et al. 2211.17192 and Chen et al. 2302.01318, on a tree Sequoia, Chen et al. 2402.12374.

Exact only if the number of children was decided before they were drawn, and if a node's
draws were not yet looked at by an earlier verification. Called by the target worker.
"""

from __future__ import annotations

from torch import Tensor

from specdist.speculation.noise import Noise
from specdist.speculation.rules.base import DraftRows, Laws, Verification, residual
from specdist.speculation.selection import Chance, KeyedChance
from specdist.speculation.tree import ROOT, Tree


def verify(
    tree: Tree, log_probs: Tensor, draft_rows: DraftRows | None, noise: Noise, position: int
) -> Verification:
    """See ``base.Verify`` for shapes."""
    return decide(tree, Laws(tree, log_probs, draft_rows), KeyedChance(noise, position))


def decide(tree: Tree, laws: Laws, chance: Chance) -> Verification:
    """The rule as a function of its random decisions."""
    path: list[int] = []
    node = ROOT
    while True:
        child, law = _test_children(tree, node, laws, chance)
        if child is None:
            return Verification(tuple(path), chance.draw(law), laws.num_missing_rows)
        path.append(child)
        node = child


def _test_children(tree: Tree, node: int, laws: Laws, chance: Chance) -> tuple[int | None, Tensor]:
    """The accepted child, or None and the law that the next token has to follow."""
    target = laws.target(node)
    draft = laws.draft(node)
    if draft is None:
        return None, target
    for child in tree.children(node):
        token = tree.tokens[child]
        if chance.accept(min(1.0, float(target[token]) / draft.prob(token))):
            return child, target
        target, _ = residual(target, 1.0, draft)
        draft = draft.without(token)
    return None, target
