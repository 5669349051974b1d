"""Furniture that the rules share: the result, the target's law, the draft's law.

Knows no particular rule. The laws are float64 throughout: a ratio of two float32
roundings would bias a rejection test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdist.speculation.noise import Noise
from specdist.speculation.tree import Tree


class Verification(NamedTuple):
    """Accepted nodes from the root downward, and the one token that follows them."""

    path: tuple[int, ...]
    next_token: int
    num_missing_rows: int = 0  # inner nodes met whose draft law was absent or unusable


class SparseLaw(Protocol):
    """A law that is zero outside ``token_ids``; ``protocol.DraftRow`` is one."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def probs(self) -> Sequence[float]: ...


DraftRows = Mapping[int, SparseLaw]


class Verify(Protocol):
    """The shape of every rule.

    ``log_probs``: [len(tree) + 1, vocab], row 0 for the root, row i + 1 for node i;
    ``draft_rows``: by inner node, -1 for the root; ``position``: of the first token to decide.
    """

    def __call__(
        self,
        tree: Tree,
        log_probs: Tensor,
        draft_rows: DraftRows | None,
        noise: Noise,
        position: int,
    ) -> Verification: ...


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """What is left of the draft's law at one node: weights sum to 1, or to 0 when used up."""

    token_ids: Tensor  # int64 [m]
    weights: Tensor  # float64 [m]

    def prob(self, token: int) -> float:
        """The chance that the draft draws ``token`` next."""
        return float(self.weights[self.token_ids == token].sum())

    def without(self, token: int) -> DraftLaw:
        """The law of the next draw once ``token`` has been drawn."""
        weights = self.weights.masked_fill(self.token_ids == token, 0.0)
        mass = float(weights.sum())
        return DraftLaw(self.token_ids, weights / mass if mass > 0 else weights)


class Laws:
    """p and q at the nodes of one tree, made when a rule asks for them."""

    def __init__(self, tree: Tree, log_probs: Tensor, draft_rows: DraftRows | None) -> None:
        check_rows_fit(tree, log_probs)
        self.tree = tree
        self.num_missing_rows = 0
        self._log_probs = log_probs
        self._draft_rows: DraftRows = {} if draft_rows is None else draft_rows

    def target(self, node: int) -> Tensor:
        """p after ``node``: float64 [vocab], sums to 1."""
        law = self._log_probs[node + 1].double().exp()
        total = float(law.sum())
        if not 0 < total < math.inf:
            raise FloatingPointError(f"the target's law at node {node} sums to {total}")
        return law / total

    def draft(self, node: int) -> DraftLaw | None:
        """q after ``node``; None if there are no children or q cannot be used (counted).

        A law under which one of the children could not have been drawn, or with NaN,
        counts as missing: the node is then treated as a leaf, which is always exact.
        """
        children = self.tree.children(node)
        if not children:
            return None
        tokens = [self.tree.tokens[child] for child in children]
        row = self._draft_rows.get(node)
        if row is None or not _is_usable(row, tokens, self._log_probs.shape[1]):
            self.num_missing_rows += 1
            return None
        device = self._log_probs.device
        weights = torch.tensor(row.probs, dtype=torch.float64, device=device)
        ids = torch.tensor(row.token_ids, dtype=torch.int64, device=device)
        return DraftLaw(ids, weights / weights.sum())


def residual(law: Tensor, scale: float, draft: DraftLaw) -> tuple[Tensor, float]:
    """norm([scale * p - q]+) and its mass before normalising.

    A mass of 0 means that the rejection which led here had probability 0; p is kept.
    """
    rest = law * scale
    rest[draft.token_ids] -= draft.weights
    rest.clamp_(min=0.0)
    mass = float(rest.sum())
    return (rest / mass, mass) if mass > 0 else (law, 0.0)


def check_rows_fit(tree: Tree, log_probs: Tensor) -> None:
    """ValueError unless there is one row for the root and one per node."""
    if log_probs.dim() != 2 or len(log_probs) != len(tree) + 1:
        raise ValueError(
            f"a tree of {len(tree)} nodes needs {len(tree) + 1} rows, "
            f"got shape {tuple(log_probs.shape)}"
        )


def _is_usable(row: SparseLaw, children: Sequence[int], vocab: int) -> bool:
    ids, probs = row.token_ids, row.probs
    if len(ids) != len(probs) or len(set(ids)) != len(ids):
        return False
    if not all(math.isfinite(q) and q >= 0 for q in probs):
        return False
    if not all(0 <= token < vocab for token in ids):
        return False
    drawable = {token for token, q in zip(ids, probs, strict=True) if q > 0}
    return drawable.issuperset(children)
