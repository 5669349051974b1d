"""What a draft proposes: candidate trees, and the bundle that carries many of them.

Made by ``specdist.workers.draft_worker``, opened only by the target worker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftRow:
    """The draft's law at one inner node, sparse: zero outside ``token_ids``."""

    node: int  # index into the tree's nodes, -1 for the root
    token_ids: tuple[int, ...]
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Candidate continuations of one session.

    The root is committed token number ``base_len - 1`` and is not stored. Nodes
    stand in topological order (a parent before its children, siblings in the
    order in which they were ranked or drawn).
    """

    session_id: str
    base_len: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # index into tokens; -1: child of the root
    scores: tuple[float, ...] = ()  # estimated chance that a node is on the true path
    draft_rows: tuple[DraftRow, ...] = ()  # only for rules that need the draft's law
    rests: bool = False  # no candidates: the draft pauses, nothing is worth waiting for


@dataclass(frozen=True, slots=True)
class Offers:
    """All candidate trees of one draft step for one target: one message."""

    draft_id: str
    trees: tuple[CandidateTree, ...]
    draft_step_s: float = 0.0
