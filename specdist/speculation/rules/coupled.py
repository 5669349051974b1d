"""coupled: at each position the target's token is its own Gumbel-max sample.

A candidate is accepted iff it is that token, so the tokens are plain decoding's by
construction, whatever the tree: lossless and the same for the same seed. The draft's
law is not needed. Temperature 0 is plain argmax. Source of the idea: Daliri, Musco,
Suresh, "Coupling without communication and drafter-invariant speculative decoding", 2024.

Plain decoding is this rule with an empty tree. Called by the target worker.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specdist.speculation.noise import Noise
from specdist.speculation.rules.base import DraftRows, Verification, check_rows_fit
from specdist.speculation.sampling import SamplingState, adjusted_logits, scores
from specdist.speculation.selection import argmax, gumbel_argmax
from specdist.speculation.tree import ROOT, Tree


def verify(
    tree: Tree, log_probs: Tensor, draft_rows: DraftRows | None, noise: Noise, position: int
) -> Verification:
    """Follow the target's own choices through the tree; see ``base.Verify`` for shapes."""
    check_rows_fit(tree, log_probs)

    def choose(node: int, depth: int) -> int:
        return gumbel_argmax(log_probs[node + 1], noise, position + depth)

    return follow(tree, choose)


def verify_logits(
    tree: Tree, logits: Tensor, state: SamplingState, noise: Noise, position: int
) -> Verification:
    """The same from raw logits [len(tree) + 1, vocab]: what the engine step should call.

    Only the rows on the accepted path are looked at, no softmax is taken, and temperature 0
    costs one argmax a row. NaN in a row that decides nothing is not noticed.
    """
    check_rows_fit(tree, logits)

    def choose(node: int, depth: int) -> int:
        row = logits[node + 1 : node + 2]
        if state.is_greedy and not state.adjusts_logits:
            return argmax(row[0].float())
        path = [tree.path_tokens(node)]
        if state.is_greedy:
            return argmax(adjusted_logits(row, state, path)[0])
        return gumbel_argmax(scores(row, state, path)[0], noise, position + depth)

    return follow(tree, choose)


def follow(tree: Tree, choose: Callable[[int, int], int]) -> Verification:
    """Walk down while the chosen token is a child; ``choose(node, depth)`` gives the token."""
    path: list[int] = []
    node = ROOT
    while True:
        token = choose(node, len(path))
        child = tree.child_with_token(node, token)
        if child is None:
            return Verification(tuple(path), token)
        path.append(child)
        node = child
