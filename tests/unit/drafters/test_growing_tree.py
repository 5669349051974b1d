"""The growing tree keeps its invariants under any sequence of additions and re-rootings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdist.drafters.growing_tree import NO_ROW, ROOT, GrowingTree

additions = st.lists(
    st.tuples(st.integers(-1, 30), st.integers(0, 5), st.floats(0.0, 1.0)), max_size=40
)


def grown(steps: list[tuple[int, int, float]]) -> GrowingTree:
    tree = GrowingTree()
    for parent, token, score in steps:
        tree.add(min(parent, len(tree) - 1), token, score)
    return tree


@given(additions)
def test_children_follow_parents_and_never_outscore_them(
    steps: list[tuple[int, int, float]],
) -> None:
    tree = grown(steps)
    for node, parent in enumerate(tree.parents):
        assert parent < node
        assert tree.depths[node] == (1 if parent == ROOT else tree.depths[parent] + 1)
    keys = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(keys) == len(set(keys))


@given(additions, st.integers(1, 20), st.integers(1, 6))
def test_best_nodes_are_closed_under_parents(
    steps: list[tuple[int, int, float]], max_nodes: int, max_depth: int
) -> None:
    tree = grown(steps)
    chosen = tree.best(max_nodes, max_depth)
    assert len(chosen) <= max_nodes
    assert all(tree.parents[i] == ROOT or tree.parents[i] in chosen for i in chosen)


@given(additions, st.integers(0, 39))
def test_reroot_keeps_exactly_the_subtree(steps: list[tuple[int, int, float]], pick: int) -> None:
    tree = grown(steps)
    if not len(tree):
        return
    node = pick % len(tree)
    for i in range(len(tree)):
        tree.rows[i] = i
    below = {}
    for i in range(len(tree)):
        path, at = [], i
        while at not in (ROOT, node):
            path.append(tree.tokens[at])
            at = tree.parents[at]
        if at == node and path:
            below[i] = tuple(reversed(path))
    kept = tree.reroot(node)
    assert set(kept) == set(below)
    for new, old in enumerate(kept):
        assert tuple(tree.tokens[j] for j in tree.follow(below[old])) == below[old]
        assert tree.rows[new] == old
        assert 0.0 <= tree.scores[new] <= 1.0


def test_adding_a_known_child_raises_its_score_only() -> None:
    tree = GrowingTree()
    a = tree.add(ROOT, 7, 0.4)
    assert tree.add(ROOT, 7, 0.6) == a and tree.scores[a] == 0.6
    assert tree.add(ROOT, 7, 0.1) == a and tree.scores[a] == 0.6
    assert tree.add(a, 8, 0.9) != a and tree.scores[1] == 0.6


def test_frontier_offers_a_child_only_beside_or_after_its_parent() -> None:
    tree = GrowingTree()
    a = tree.add(ROOT, 1, 0.9)
    b = tree.add(a, 2, 0.9)
    assert tree.frontier(1, 8) == [a]
    assert tree.frontier(2, 8) == [a, b]
    tree.expanded[a], tree.rows[a] = True, 0
    assert tree.frontier(2, 8) == [b]
    assert tree.frontier(2, 1) == []


def test_rows_follow_the_compaction_of_the_cache() -> None:
    tree = GrowingTree()
    for token in range(4):
        tree.add(ROOT, token, 0.5)
    tree.rows = [5, NO_ROW, 2, 9]
    tree.renumber_rows([2, 5])
    assert tree.rows == [1, NO_ROW, 0, NO_ROW]
