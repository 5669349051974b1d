"""The draft model: grows every session's tree best-first, all sessions in one forward pass.

A session first computes what it lacks of the committed tokens (prefill, or the token that
the target decided otherwise), then its likeliest unexpanded nodes, with tree attention on
the draft's own cache. ``ranking`` turns the logits into children. Called by the draft worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from specdist.config import SpeculationConfig
from specdist.drafters.base import DraftSession
from specdist.drafters.growing_tree import NO_ROW, ROOT
from specdist.drafters.ranking import ChildRanking
from specdist.engine.engine import Engine
from specdist.engine.sequence import Rows, chain_rows
from specdist.errors import InvalidRequestError
from specdist.speculation.constraint import ConstraintError

logger = logging.getLogger(__name__)
EXPAND_WIDTH = 4  # nodes of one session that are expanded in one forward pass


@dataclass(frozen=True, slots=True)
class Work:
    """One session's part of a forward pass: pending committed tokens, or tree nodes."""

    session: DraftSession
    rows: Rows
    nodes: tuple[int, ...]  # nodes whose logits come back; (ROOT,) after the last pending token


class DraftModel:
    """Grows trees with a model; the engine's cache holds a row for every expanded node."""

    name = "draft_model"

    def __init__(
        self,
        settings: SpeculationConfig,
        engine: Engine,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._on_trouble = on_trouble
        self._ranking = ChildRanking(settings)

    def attach(self, session: DraftSession) -> None:
        """Give the session a sequence in the cache when the model can hold it."""
        try:
            sequence = self._engine.open(session.request.session_id, session.tokens)
        except InvalidRequestError as error:
            logger.info("%s: not drafted for: %s", session.request.session_id, error)
            self._on_trouble("too_long")
            return
        session.tokens = sequence.tokens
        session.sequence = sequence
        self._engine.attach_prefix(sequence)

    def detach(self, session: DraftSession) -> None:
        """Go on without the model for this session; its memory is free again."""
        if session.sequence is not None:
            session.tokens = list(session.tokens)
            session.sequence = None
            session.tree.clear()
            session.draft_rows.clear()
            self._engine.close(session.request.session_id)

    def commit(self, session: DraftSession, tokens: Sequence[int]) -> None:
        """Append committed tokens, re-root the tree and keep the surviving KV."""
        tree, sequence = session.tree, session.sequence
        self._ranking.learn(session, tokens)
        path = tree.follow(tokens)
        session.tokens.extend(tokens)
        session.root_law = None
        survives = len(path) == len(tokens) and not session.draws
        rows = []
        for node in path:
            if tree.rows[node] == NO_ROW:
                break
            rows.append(tree.rows[node])
        if survives:
            tree.reroot(path[-1])
        else:
            tree.clear()
            session.draft_rows.clear()
            del rows[len(tokens) - 1 :]  # the new root's logits are needed once more
        if sequence is None:
            return
        kept_rows = sorted(row for row in tree.rows if row != NO_ROW)
        self._engine.settle(sequence, rows, kept_rows)
        tree.renumber_rows(kept_rows)
        if len(session.tokens) >= self._engine.max_model_len:
            self.detach(session)

    def is_complete(self, session: DraftSession, max_nodes: int, max_depth: int) -> bool:
        """Whether another forward pass could not improve the best ``max_nodes`` nodes."""
        if session.sequence is None:
            return True
        tree = session.tree
        if self._pending(session) or not tree.root_expanded:
            return False
        if session.draws:
            return not self._drawable(session)
        frontier = tree.frontier(1, self._deepest(session, max_depth), session.limits.min_score)
        if not frontier:
            return True
        best = tree.best(max_nodes, max_depth)
        return len(best) >= max_nodes and tree.scores[frontier[0]] <= min(
            tree.scores[i] for i in best
        )

    def work_for(self, session: DraftSession, max_rows: int, max_depth: int) -> Work | None:
        """The session's part of the next forward pass, at most ``max_rows`` rows."""
        sequence = session.sequence
        if sequence is None or max_rows < 1:
            return None
        pending = self._pending(session)[:max_rows]
        if pending:
            last = sequence.num_computed + len(pending) == len(session.tokens)
            rows = chain_rows(sequence, pending, [len(pending) - 1] if last else [])
            return Work(session, rows, (ROOT,) if last else ())
        nodes = self._nodes_to_expand(session, min(max_rows, EXPAND_WIDTH), max_depth)
        if not nodes:
            return None
        place = {node: len(sequence.region_tokens) + i for i, node in enumerate(nodes)}
        tree = session.tree
        parents = []
        for node in nodes:
            parent = tree.parents[node]
            parents.append(ROOT if parent == ROOT else place.get(parent, tree.rows[parent]))
        tokens = [tree.tokens[node] for node in nodes]
        return Work(session, Rows(sequence, tokens, parents, list(range(len(nodes)))), tuple(nodes))

    def forward(self, batch: Sequence[Work]) -> None:
        """One forward pass; adds the children that it reveals to the trees."""
        first_row = [len(work.rows.seq.region_tokens) for work in batch]
        logits = self._engine.forward([work.rows for work in batch])
        for work, first, rows in zip(batch, first_row, logits, strict=True):
            self._absorb(work, first, rows)

    def _absorb(self, work: Work, first_row: int, logits: Tensor) -> None:
        session, tree = work.session, work.session.tree
        if work.nodes in ((), (ROOT,)):
            self._engine.settle(work.rows.seq, list(range(len(work.rows.tokens))))
        else:
            for i, node in enumerate(work.nodes):
                tree.rows[node] = first_row + i
        if not work.nodes:
            return
        try:
            self._ranking.add_children(session, work.nodes, logits)
        except (FloatingPointError, ConstraintError) as error:
            logger.warning("%s: drafting stops: %s", session.request.session_id, error)
            self._on_trouble("grammar" if isinstance(error, ConstraintError) else "nan")
            self.detach(session)

    def _drawable(self, session: DraftSession) -> list[int]:
        if self._ranking.num_drawn(session, 0) < 1:
            return []
        return session.tree.frontier(1, self._deepest(session, session.limits.max_depth))

    def _nodes_to_expand(self, session: DraftSession, limit: int, max_depth: int) -> list[int]:
        if session.draws:
            return self._drawable(session)
        depth = self._deepest(session, max_depth)
        return session.tree.frontier(limit, depth, session.limits.min_score)

    def _deepest(self, session: DraftSession, max_depth: int) -> int:
        """The depth up to which nodes are expanded: their rows must fit the model's context."""
        return min(max_depth - 1, self._engine.max_model_len - session.committed_len)

    def _pending(self, session: DraftSession) -> list[int]:
        assert session.sequence is not None
        return session.tokens[session.sequence.num_computed :]
