"""The candidate tree that a draft keeps for one session while it grows and re-roots.

A plain data structure: tokens, parents, estimated chances and the draft's KV rows. It
knows no model, no rule and no session; drafters add nodes, the draft worker re-roots it
after each verdict and cuts the part that is offered to the target.

Definitions. The root is the last committed token and is no node (index -1). A node's
score is the estimated chance that it lies on the target's path; it never exceeds its
parent's, so the best N nodes always form a tree. A node is expanded once the draft has
computed its KV row and ranked its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ROOT = -1
NO_ROW = -1
Features = tuple[float, ...]


class GrowingTree:
    """Mutable candidate tree; indexes are stable until ``reroot`` or ``clear``."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.depths: list[int] = []
        self.rows: list[int] = []  # index in the engine's speculative region, NO_ROW: not computed
        self.expanded: list[bool] = []
        self.features: list[Features | None] = []  # what the score was estimated from
        self.root_expanded = False
        self._child: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        """Forget every node."""
        self.__init__()  # type: ignore[misc]

    def add(self, parent: int, token: int, score: float, features: Features | None = None) -> int:
        """Add a child, or raise the score of the one that is there; returns its index."""
        limit = 1.0 if parent == ROOT else self.scores[parent]
        score = min(score, limit)
        node = self._child.get((parent, token))
        if node is not None:
            self.scores[node] = max(self.scores[node], score)
            self.features[node] = self.features[node] or features
            return node
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.rows.append(NO_ROW)
        self.expanded.append(False)
        self.features.append(features)
        self._child[parent, token] = node
        return node

    def child(self, parent: int, token: int) -> int | None:
        """The child of ``parent`` that carries ``token``, if there is one."""
        return self._child.get((parent, token))

    def children(self, parent: int) -> list[int]:
        """Children in the order in which they were added."""
        return [i for i, p in enumerate(self.parents) if p == parent]

    def frontier(self, limit: int, max_depth: int, min_score: float = 0.0) -> list[int]:
        """The best nodes that are not expanded and not deeper than ``max_depth``."""
        open_nodes = [
            i
            for i in range(len(self.tokens))
            if not self.expanded[i] and self.depths[i] <= max_depth and self.scores[i] >= min_score
        ]
        open_nodes.sort(key=lambda i: (-self.scores[i], i))
        chosen: list[int] = []
        taken: set[int] = set()
        for node in open_nodes:
            if len(chosen) == limit:
                break
            parent = self.parents[node]
            # A row needs its parent's row: expanded already, or in this very forward pass.
            if parent == ROOT or self.rows[parent] != NO_ROW or parent in taken:
                chosen.append(node)
                taken.add(node)
        return chosen

    def best(self, max_nodes: int, max_depth: int) -> list[int]:
        """The ``max_nodes`` likeliest nodes up to ``max_depth``, in topological order."""
        allowed = [i for i in range(len(self.tokens)) if self.depths[i] <= max_depth]
        allowed.sort(key=lambda i: (-self.scores[i], i))
        return sorted(allowed[:max_nodes])

    def follow(self, tokens: Iterable[int]) -> list[int]:
        """The nodes along ``tokens`` from the root, as far as the tree has them."""
        path: list[int] = []
        node = ROOT
        for token in tokens:
            child = self._child.get((node, token))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def reroot(self, node: int) -> list[int]:
        """Keep only the nodes below ``node``; returns their old indexes in their new order."""
        if node == ROOT:
            return list(range(len(self.tokens)))
        scale = max(self.scores[node], 1e-9)
        new_index = {node: ROOT}
        kept: list[int] = []
        for i, parent in enumerate(self.parents):
            if parent in new_index and parent != ROOT:
                new_index[i] = len(kept)
                kept.append(i)
        root_expanded = self.expanded[node]
        tokens, parents, scores, features = self.tokens, self.parents, self.scores, self.features
        rows, expanded = self.rows, self.expanded
        self.clear()
        self.root_expanded = root_expanded
        for i in kept:
            fresh = self.add(new_index[parents[i]], tokens[i], scores[i] / scale, features[i])
            self.rows[fresh], self.expanded[fresh] = rows[i], expanded[i]
        return kept

    def renumber_rows(self, kept_rows: Sequence[int]) -> None:
        """Follow the engine's compaction: row ``kept_rows[i]`` is row ``i`` now."""
        place = {row: i for i, row in enumerate(kept_rows)}
        self.rows = [place.get(row, NO_ROW) if row != NO_ROW else NO_ROW for row in self.rows]

    def expected_accepted(self, nodes: Iterable[int]) -> float:
        """Sum of the nodes' chances: the tokens that offering them would save."""
        return sum(self.scores[i] for i in nodes)
