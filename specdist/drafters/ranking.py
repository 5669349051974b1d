"""Which children a node gets, and what each is worth: the draft model's logits become nodes.

For rules that accept any tree the children are the likeliest tokens under
``log q + lambda * g`` with the target's own noise g; their scores are calibrated online
from what the target commits, and so is lambda. Rules that need draws get their children
without replacement from fresh noise, their number fixed before they are drawn. Called by
the draft model; knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from specdist.config import SpeculationConfig
from specdist.drafters.base import DraftSession
from specdist.drafters.growing_tree import ROOT
from specdist.protocol.candidates import DraftRow
from specdist.speculation.acceptance import LAMBDAS, Calibrator, LambdaFit, child_features
from specdist.speculation.constraint import Constraint
from specdist.speculation.draft_sampling import (
    draw_without_replacement,
    rank_children,
    ranking_log_probs,
    token_ranks,
)
from specdist.speculation.masking import has_candidates
from specdist.speculation.sampling import log_probs

DRAWN_CHILDREN_BELOW_ROOT = 2
MIN_CHANCE = 1e-4  # children less likely than this are not worth remembering


class ChildRanking:
    """Ranks or draws children; learns from verdicts for all sessions of a replica."""

    def __init__(self, settings: SpeculationConfig) -> None:
        self._trust = LambdaFit(start=settings.noise_trust, width=settings.max_children)
        self._greedy = Calibrator()
        self._sampled = Calibrator()

    def add_children(self, session: DraftSession, nodes: Sequence[int], logits: Tensor) -> None:
        """Expand nodes; ``logits`` has one row for each. NaN raises FloatingPointError."""
        for node in nodes:
            if node == ROOT:
                session.tree.root_expanded = True
            else:
                session.tree.expanded[node] = True
        paths = [path_tokens(session, node) for node in nodes]
        if session.sampling.constraint is not None:
            able = _able_rows(session.sampling.constraint, logits, paths)
            nodes, paths = [nodes[i] for i in able], [paths[i] for i in able]
            logits = logits[able]
        if not nodes:
            return
        if session.draws:
            self._draw(session, nodes, log_probs(logits, session.sampling, paths), paths)
        else:
            laws = ranking_log_probs(logits, session.sampling, paths)
            self._rank(session, nodes, laws, paths)

    def learn(self, session: DraftSession, tokens: Sequence[int]) -> None:
        """Compare the tree with what was committed; before the tree is re-rooted."""
        if session.draws:
            return
        if session.root_law is not None:
            ranks = token_ranks(
                session.root_law, session.noise, session.committed_len, tokens[0], LAMBDAS
            )
            self._trust.observe(1, ranks)
        tree, node, calibrator = session.tree, ROOT, self._calibrator(session)
        for depth, token in enumerate(tokens, 1):
            for child in tree.children(node):
                features = tree.features[child]
                if features is not None:
                    calibrator.observe(depth, features, tree.tokens[child] == token)
            found = tree.child(node, token)
            if found is None:
                return
            node = found

    def num_drawn(self, session: DraftSession, node: int) -> int:
        """How many children a node gets by drawing, decided before any is drawn."""
        wide = session.limits.max_children
        wanted = wide if node == ROOT else min(wide, DRAWN_CHILDREN_BELOW_ROOT)
        return max(0, min(wanted, session.limits.max_nodes - len(session.tree)))

    def _rank(
        self,
        session: DraftSession,
        nodes: Sequence[int],
        laws: Tensor,
        paths: Sequence[tuple[int, ...]],
    ) -> None:
        tree, greedy = session.tree, session.sampling.is_greedy
        trust = 0.0 if greedy else self._trust.value(1)
        positions = [session.committed_len + len(path) for path in paths]
        width = min(session.limits.max_children, laws.shape[1])
        ranked = rank_children(laws, session.noise, positions, trust, width)
        calibrator = self._calibrator(session)
        rows = zip(
            nodes, paths, ranked.token_ids.tolist(), ranked.log_q.tolist(),
            ranked.scores.tolist(), strict=True,
        )  # fmt: skip
        for node, path, token_ids, log_q, scores in rows:
            above = 1.0 if node == ROOT else tree.scores[node]
            for rank, (token, q, score) in enumerate(zip(token_ids, log_q, scores, strict=True)):
                if not math.isfinite(score):
                    break
                features = child_features(q, score, scores[0], rank)
                chance = calibrator.probability(len(path) + 1, features)
                if chance >= MIN_CHANCE:
                    tree.add(node, token, above * chance, features)
        if nodes[0] == ROOT:
            session.root_law = None if greedy else laws[0]

    def _draw(
        self,
        session: DraftSession,
        nodes: Sequence[int],
        laws: Tensor,
        paths: Sequence[tuple[int, ...]],
    ) -> None:
        for node, path, law in zip(nodes, paths, laws, strict=True):
            count = self.num_drawn(session, node)
            position = session.committed_len + len(path)
            draw = draw_without_replacement(law, count, session.noise, position, session.num_draws)
            session.num_draws += 1
            session.draft_rows[node] = DraftRow(node, draw.row.token_ids, draw.row.probs)
            above = 1.0 if node == ROOT else session.tree.scores[node]
            for token in draw.token_ids:
                session.tree.add(node, token, above * math.exp(float(law[token])))

    def _calibrator(self, session: DraftSession) -> Calibrator:
        return self._greedy if session.sampling.is_greedy else self._sampled


def _able_rows(
    constraint: Constraint, logits: Tensor, paths: Sequence[tuple[int, ...]]
) -> list[int]:
    """Rows with something to propose: all, where the draft's output vocabulary is the whole one."""
    return [i for i, path in enumerate(paths) if has_candidates(logits[i], constraint, path)]


def path_tokens(session: DraftSession, node: int) -> tuple[int, ...]:
    """Tokens from the root's child to the node."""
    tokens: list[int] = []
    while node != ROOT:
        tokens.append(session.tree.tokens[node])
        node = session.tree.parents[node]
    return tuple(reversed(tokens))
