"""traversal: verify from the leaves to the root, so that a good later token can save a path.

Every node u carries a_u, the chance with which its path may be taken (1 at the root),
and its p_u and q_u. Child x starts with a_x = min(1, a_u p_u(x) / q_u(x)). A node whose
children are all gone is accepted with a_u, and the next token is drawn from p_u; else
it is deleted and its parent moves on:

    S = sum [a_u p_u - q_u]+     p_u <- norm([a_u p_u - q_u]+)
    q_u(x) <- 0, renormalised    a_u <- S / (S + 1 - a_u)

Children were drawn from q without replacement. Lossless: Weng et al. 2505.12398 (the
update of a_u confirmed by exact enumeration); on a chain this is block verification, Sun
et al. 2403.10444. Called by the target worker.
"""

from __future__ import annotations

from torch import Tensor

from specdist.speculation.noise import Noise
from specdist.speculation.rules.base import DraftLaw, DraftRows, Laws, Verification, residual
from specdist.speculation.selection import Chance, KeyedChance
from specdist.speculation.tree import ROOT, Tree


def verify(
    tree: Tree, log_probs: Tensor, draft_rows: DraftRows | None, noise: Noise, position: int
) -> Verification:
    """See ``base.Verify`` for shapes."""
    return decide(tree, Laws(tree, log_probs, draft_rows), KeyedChance(noise, position))


def decide(tree: Tree, laws: Laws, chance: Chance) -> Verification:
    """The rule as a function of its random decisions."""
    stack = [_Visit(tree, laws, ROOT, 1.0)]
    while True:
        visit = stack[-1]
        child = visit.next_child()
        if child is not None:
            stack.append(_Visit(tree, laws, child, visit.child_trust(child)))
        elif chance.accept(visit.trust):
            path = tuple(v.node for v in stack[1:])
            return Verification(path, chance.draw(visit.target), laws.num_missing_rows)
        else:
            stack.pop()
            stack[-1].delete(visit.node)


class _Visit:
    """One node on the way down, with its current a_u, p_u and q_u."""

    def __init__(self, tree: Tree, laws: Laws, node: int, trust: float) -> None:
        self.node = node
        self.trust = trust  # a_u; the root's stays 1, so the stack never runs empty
        self.target: Tensor = laws.target(node)
        self.draft: DraftLaw | None = laws.draft(node)
        self._tree = tree
        self._children = iter(tree.children(node) if self.draft is not None else ())

    def next_child(self) -> int | None:
        return next(self._children, None)

    def child_trust(self, child: int) -> float:
        token = self._tree.tokens[child]
        assert self.draft is not None
        return min(1.0, self.trust * float(self.target[token]) / self.draft.prob(token))

    def delete(self, child: int) -> None:
        """The child was rejected: what is left of p, q and a."""
        assert self.draft is not None
        self.target, mass = residual(self.target, self.trust, self.draft)
        self.draft = self.draft.without(self._tree.tokens[child])
        if self.trust < 1.0:
            self.trust = mass / (mass + 1.0 - self.trust)
