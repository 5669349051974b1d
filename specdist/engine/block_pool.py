"""The pool of KV blocks: who holds which, which are free, which are kept for reuse.

A block is free, held (reference count > 0) or cached (count 0, content worth keeping,
given up oldest first). Allocation prefers blocks that continue the caller's last one,
because attention is cheaper over physically contiguous runs; a new run starts in the
middle of the largest gap, so that its left neighbour can still grow. Knows no tokens and
no tensors; called by the engine only.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable

FREE, CACHED, HELD = 0, 1, 2
_FREE_RUNS = re.compile(rb"\x00+")
EVICT_SHARE = 32  # evict this fraction of the pool at once: neighbours go together


class BlockPool:
    """Reference-counted blocks 0 .. num_blocks-1; ``on_evict`` hears of every lost content."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] = lambda block: None):
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._state = bytearray(num_blocks)  # FREE, CACHED or HELD
        self._refs = [0] * num_blocks
        self._lru: OrderedDict[int, None] = OrderedDict()  # cached blocks, oldest first
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks with no content worth keeping."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Blocks kept for prefix reuse that nobody holds."""
        return len(self._lru)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now."""
        return self._num_free + len(self._lru)

    def refs(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._refs[block]

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """Hold ``count`` blocks, continuing block ``after`` where possible; None if too few."""
        if count > self.num_available:
            return None
        if count > self._num_free:
            self._evict(max(count - self._num_free, self.num_blocks // EVICT_SHARE))
        taken: list[int] = []
        if after is not None:
            taken += self._take(after + 1, count)
        while len(taken) < count:
            wanted = count - len(taken)
            taken += self._take(self._new_start(wanted), wanted)
        return taken

    def _take(self, start: int, limit: int) -> list[int]:
        stop = start
        while stop < self.num_blocks and stop - start < limit and self._state[stop] == FREE:
            self._state[stop] = HELD
            self._refs[stop] = 1
            stop += 1
        self._num_free -= stop - start
        return list(range(start, stop))

    def _new_start(self, wanted: int) -> int:
        runs = (match.span() for match in _FREE_RUNS.finditer(self._state))
        low, high = max(runs, key=lambda run: run[1] - run[0])
        room = high - low - wanted
        return low if low == 0 or room <= 0 else low + (room + 1) // 2

    def _evict(self, count: int) -> None:
        for _ in range(min(count, len(self._lru))):
            block, _none = self._lru.popitem(last=False)
            self._state[block] = FREE
            self._num_free += 1
            self._on_evict(block)

    def share(self, block: int) -> None:
        """Hold a cached or already held block once more."""
        if self._state[block] == FREE:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._lru.pop(block, None)
        self._state[block] = HELD
        self._refs[block] += 1

    def release(self, blocks: Iterable[int], is_cached: Callable[[int], bool]) -> None:
        """Give blocks back; those with content worth keeping stay cached, in this order."""
        for block in blocks:
            if self._refs[block] < 1:
                raise ValueError(f"block {block} is not held and cannot be released")
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if is_cached(block):
                self._state[block] = CACHED
                self._lru[block] = None
            else:
                self._state[block] = FREE
                self._num_free += 1

    def check_integrity(self, expected_refs: dict[int, int]) -> None:
        """Raise RuntimeError unless the books agree with the holders' own counts."""
        for block in range(self.num_blocks):
            wanted = expected_refs.get(block, 0)
            state = HELD if wanted else CACHED if block in self._lru else FREE
            if self._refs[block] != wanted or self._state[block] != state:
                raise RuntimeError(
                    f"block {block}: {wanted} holders, but count {self._refs[block]} "
                    f"and state {self._state[block]} (expected {state})"
                )
        num_held = len(expected_refs)
        if self._num_free + self.num_cached + num_held != self.num_blocks:
            raise RuntimeError(
                f"free {self._num_free} + cached {self.num_cached} + held {num_held} "
                f"is not {self.num_blocks}"
            )
