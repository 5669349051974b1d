"""Trees: structure, re-rooting, merging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdist.speculation.tree import ROOT, Tree


@st.composite
def trees(draw, max_nodes: int = 14, vocab: int = 6) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(tokens) - 1))
        token = draw(st.integers(0, vocab - 1))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    return Tree(tuple(tokens), tuple(parents))


def all_paths(tree: Tree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}


def test_small_tree() -> None:
    tree = Tree((5, 6, 7, 5), (-1, -1, 0, 2))
    assert len(tree) == 4
    assert tree.children(-1) == (0, 1) and tree.children(0) == (2,) and tree.children(3) == ()
    assert tree.depths == (1, 1, 2, 3)
    assert tree.path(3) == (0, 2, 3) and tree.path(-1) == ()
    assert tree.path_tokens(3) == (5, 7, 5)
    assert tree.child_with_token(-1, 6) == 1 and tree.child_with_token(1, 6) is None
    assert tree.walk([5, 7]) == 2 and tree.walk([]) == -1 and tree.walk([5, 6]) is None
    assert tree.subtree(0) == (Tree((7, 5), (-1, 0)), (2, 3))
    assert tree.select([2, 0]) == (Tree((5, 7), (-1, 0)), (0, 2))


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((1,), (), "one parent per token, got 1 tokens and 0 parents"),
        ((1, 2), (-1, 1), "parent of node 1 must be in -1..0, got 1"),
        ((1,), (-2,), "parent of node 0 must be in -1..-1, got -2"),
        ((1, 1), (-1, -1), "node 1 repeats token 1 under parent -1"),
        ((-3,), (-1,), "token of node 0 must not be negative, got -3"),
    ],
)
def test_bad_trees_are_refused(tokens, parents, message) -> None:
    with pytest.raises(ValueError, match=message):
        Tree(tokens, parents)


def test_bad_nodes_are_refused() -> None:
    tree = Tree.chain([1, 2])
    for call in (tree.children, tree.path, tree.subtree):
        with pytest.raises(ValueError, match=r"node must be in -1..1, got 2"):
            call(2)
    with pytest.raises(ValueError, match="node 1 is selected without its parent 0"):
        tree.select([1])
    with pytest.raises(ValueError, match=r"node must be in 0..1, got -1"):
        tree.select([-1])


@given(st.lists(st.integers(0, 9), max_size=12))
def test_chain_walks_to_its_end(tokens: list[int]) -> None:
    tree = Tree.chain(tokens)
    assert tree.walk(tokens) == len(tokens) - 1
    assert tree.depths == tuple(range(1, len(tokens) + 1))


@given(trees())
def test_paths_and_walks_agree(tree: Tree) -> None:
    for node in range(ROOT, len(tree)):
        assert tree.walk(tree.path_tokens(node)) == node
        for child in tree.children(node):
            assert tree.parents[child] == node
    assert sum(len(tree.children(node)) for node in range(ROOT, len(tree))) == len(tree)


@given(trees())
def test_subtree_keeps_exactly_what_lies_below(tree: Tree) -> None:
    for node in range(ROOT, len(tree)):
        sub, kept = tree.subtree(node)
        prefix = tree.path_tokens(node)
        below = {p[len(prefix) :] for p in all_paths(tree) if p[: len(prefix)] == prefix}
        assert all_paths(sub) == below - {()}
        assert sub.tokens == tuple(tree.tokens[i] for i in kept)


@given(trees(), st.data())
def test_select_of_closed_sets(tree: Tree, data) -> None:
    picked = data.draw(st.sets(st.integers(0, max(len(tree) - 1, 0)))) if len(tree) else set()
    closed = {i for node in picked for i in tree.path(node)}
    sub, kept = tree.select(closed)
    assert kept == tuple(sorted(closed))
    assert all_paths(sub) == {tree.path_tokens(node) for node in closed}


@given(trees(), trees())
def test_merge_is_the_union_of_paths(a: Tree, b: Tree) -> None:
    merged = Tree.merge(a, b)
    assert all_paths(merged.tree) == all_paths(a) | all_paths(b)
    for tree, places in ((a, merged.from_a), (b, merged.from_b)):
        for node, place in enumerate(places):
            assert merged.tree.path_tokens(place) == tree.path_tokens(node)
    assert Tree.merge(a, a).tree == a


@given(trees())
def test_ancestor_mask(tree: Tree) -> None:
    mask = tree.ancestor_mask()
    for i in range(len(tree)):
        assert {j for j in range(len(tree)) if mask[i][j]} == set(tree.path(i))
