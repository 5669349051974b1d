"""Candidate trees: tokens that may follow the root, the last committed token.

Plain Python on purpose: rooms without torch may use it. Knows no model, no scores and
no session. Called by the rules, the drafters and the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

ROOT = -1


class Merged(NamedTuple):
    """Two trees in one; ``from_a[i]`` is where node i of the first tree now stands."""

    tree: Tree
    from_a: tuple[int, ...]
    from_b: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """Nodes in topological order; the root itself is not stored.

    ``parents[i]`` is the index of node i's parent, always below i; -1 is the root.
    Siblings carry different tokens and stand in the order they were ranked or drawn in.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(
                f"a tree needs one parent per token, got {len(self.tokens)} tokens "
                f"and {len(self.parents)} parents"
            )
        seen: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not ROOT <= parent < node:
                raise ValueError(f"parent of node {node} must be in -1..{node - 1}, got {parent}")
            if token < 0:
                raise ValueError(f"token of node {node} must not be negative, got {token}")
            if (parent, token) in seen:
                raise ValueError(f"node {node} repeats token {token} under parent {parent}")
            seen.add((parent, token))

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> Tree:
        """One path: each token follows the one before it."""
        chained = tuple(tokens)
        return cls(chained, tuple(range(ROOT, len(chained) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        lists: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            lists.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in lists.items()}

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def children(self, node: int) -> tuple[int, ...]:
        """The node's children in order; ``children(-1)`` are the root's."""
        self._check_node(node)
        return self._children.get(node, ())

    def path(self, node: int) -> tuple[int, ...]:
        """Node indexes from the root's child down to ``node``; empty for the root."""
        self._check_node(node)
        return tuple(reversed(list(self._upward(node))))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens on the way from the root's child down to ``node``."""
        return tuple(self.tokens[i] for i in self.path(node))

    def child_with_token(self, node: int, token: int) -> int | None:
        """The child of ``node`` that carries ``token``, or None."""
        for child in self.children(node):
            if self.tokens[child] == token:
                return child
        return None

    def walk(self, tokens: Iterable[int]) -> int | None:
        """Follow ``tokens`` from the root: the node reached, or None if they leave the tree."""
        node = ROOT
        for token in tokens:
            child = self.child_with_token(node, token)
            if child is None:
                return None
            node = child
        return node

    def subtree(self, node: int) -> tuple[Tree, tuple[int, ...]]:
        """Everything below ``node``, which becomes the root; also the old indexes kept."""
        self._check_node(node)
        if node == ROOT:
            return self, tuple(range(len(self)))
        inside = {node}
        for i in range(node + 1, len(self)):
            if self.parents[i] in inside:
                inside.add(i)
        inside.remove(node)
        return self._keep(sorted(inside), new_root=node)

    def select(self, nodes: Iterable[int]) -> tuple[Tree, tuple[int, ...]]:
        """Only ``nodes``, which must hold every parent of theirs; also the old indexes kept."""
        wanted = set(nodes)
        for node in wanted:
            if not 0 <= node < len(self):
                raise ValueError(f"node must be in 0..{len(self) - 1}, got {node}")
            if self.parents[node] != ROOT and self.parents[node] not in wanted:
                raise ValueError(f"node {node} is selected without its parent {self.parents[node]}")
        return self._keep(sorted(wanted), new_root=ROOT)

    @staticmethod
    def merge(a: Tree, b: Tree) -> Merged:
        """One tree with the paths of both; ``a``'s nodes keep their indexes."""
        tokens, parents = list(a.tokens), list(a.parents)
        place = {(p, t): i for i, (p, t) in enumerate(zip(parents, tokens, strict=True))}
        from_b: list[int] = []
        for token, parent in zip(b.tokens, b.parents, strict=True):
            key = (ROOT if parent == ROOT else from_b[parent], token)
            if key not in place:
                place[key] = len(tokens)
                parents.append(key[0])
                tokens.append(token)
            from_b.append(place[key])
        return Merged(Tree(tuple(tokens), tuple(parents)), tuple(range(len(a))), tuple(from_b))

    def ancestor_mask(self) -> tuple[tuple[bool, ...], ...]:
        """[len, len]: row i is True at node i and at its ancestors."""
        rows: list[tuple[bool, ...]] = []
        for node in range(len(self)):
            on_path = set(self._upward(node))
            rows.append(tuple(j in on_path for j in range(len(self))))
        return tuple(rows)

    def _upward(self, node: int) -> Iterator[int]:
        while node != ROOT:
            yield node
            node = self.parents[node]

    def _keep(self, kept: Sequence[int], new_root: int) -> tuple[Tree, tuple[int, ...]]:
        place = {old: new for new, old in enumerate(kept)}
        place[new_root] = ROOT
        tokens = tuple(self.tokens[old] for old in kept)
        parents = tuple(place[self.parents[old]] for old in kept)
        return Tree(tokens, parents), tuple(kept)

    def _check_node(self, node: int) -> None:
        if not ROOT <= node < len(self):
            raise ValueError(f"node must be in -1..{len(self) - 1}, got {node}")
