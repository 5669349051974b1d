"""The block pool and the prefix cache: books always balance, runs are contiguous."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specdist.engine.block_pool import BlockPool
from specdist.engine.prefix_cache import ROOT, PrefixCache


def never(block: int) -> bool:
    return False


def always(block: int) -> bool:
    return True


def test_allocation_continues_the_last_block() -> None:
    pool = BlockPool(64)
    first = pool.allocate(4)
    second = pool.allocate(4)
    assert first == [0, 1, 2, 3]
    assert pool.allocate(3, after=first[-1]) == [4, 5, 6]
    assert pool.allocate(3, after=second[-1]) == list(range(second[-1] + 1, second[-1] + 4))


def test_new_runs_leave_room_for_their_left_neighbour() -> None:
    pool = BlockPool(128)
    tables = [pool.allocate(2) for _ in range(4)]
    for _ in range(10):
        for table in tables:
            table += pool.allocate(1, after=table[-1])
    for table in tables:
        assert table == list(range(table[0], table[0] + 12))


def test_too_many_blocks_are_refused_and_nothing_changes() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) is not None
    assert pool.allocate(2) is None
    assert pool.num_available == 1


def test_cached_blocks_are_given_up_oldest_first() -> None:
    lost: list[int] = []
    pool = BlockPool(4, on_evict=lost.append)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.release(old, always)
    pool.release(new, always)
    assert pool.num_cached == 4 and pool.num_free == 0
    pool.allocate(1)
    assert lost == old[:1]


def test_shared_cached_blocks_survive_eviction() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.release(blocks, always)
    pool.share(blocks[0])
    assert pool.allocate(4) is None
    assert pool.allocate(3) is not None
    assert pool.refs(blocks[0]) == 1


@pytest.mark.parametrize("misuse", ["release", "share"])
def test_misuse_is_an_error(misuse: str) -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="block 1 is"):
        pool.release([1], never) if misuse == "release" else pool.share(1)


def test_prefix_cache_finds_the_longest_chain() -> None:
    cache = PrefixCache(2)
    node = cache.insert(ROOT, [1, 2], 7)
    cache.insert(node, [3, 4], 9)
    assert [found.block for found in cache.match([1, 2, 3, 4, 5], 2)] == [7, 9]
    assert [found.block for found in cache.match([1, 2, 3, 9], 2)] == [7]
    assert cache.match([3, 4], 1) == []
    assert [found.block for found in cache.match([1, 2, 3, 4], 1)] == [7]


def test_a_child_is_never_found_below_a_new_parent_in_the_old_block() -> None:
    cache = PrefixCache(1)
    node = cache.insert(ROOT, [1], 0)
    cache.insert(node, [2], 1)
    cache.forget(0)
    cache.insert(ROOT, [5], 0)  # the same block, another content
    assert [found.block for found in cache.match([5, 2], 2)] == [0]


def test_known_content_keeps_its_first_block() -> None:
    cache = PrefixCache(1)
    node = cache.insert(ROOT, [1], 0)
    assert cache.insert(ROOT, [1], 5) == node
    assert 5 not in cache and len(cache) == 1


class PoolMachine(RuleBasedStateMachine):
    """Random holders; the pool must agree with a plain model of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: set[int] = set()
        self.pool = BlockPool(13, on_evict=self.cached.remove)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(0, 6), grow=st.booleans())
    def allocate(self, count: int, grow: bool) -> None:
        table = self.holders[-1] if grow and self.holders else []
        fits = count <= self.pool.num_available
        blocks = self.pool.allocate(count, after=table[-1] if table else None)
        assert (blocks is not None) == fits
        if blocks is None:
            return
        assert len(set(blocks)) == count
        self.cached -= set(blocks)
        if table:
            table += blocks
        elif blocks:
            self.holders.append(blocks)

    @rule(index=st.integers(0, 9), keep=st.booleans())
    def release(self, index: int, keep: bool) -> None:
        if not self.holders:
            return
        blocks = self.holders.pop(index % len(self.holders))
        if keep:
            self.cached |= set(blocks)
        self.pool.release(reversed(blocks), self.cached.__contains__)

    @rule(index=st.integers(0, 12))
    def share(self, index: int) -> None:
        candidates = sorted(self.cached)
        if candidates:
            block = candidates[index % len(candidates)]
            self.pool.share(block)
            self.holders.append([block])

    @invariant()
    def books_balance(self) -> None:
        refs: dict[int, int] = {}
        for table in self.holders:
            for block in table:
                refs[block] = refs.get(block, 0) + 1
        self.pool.check_integrity(refs)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
