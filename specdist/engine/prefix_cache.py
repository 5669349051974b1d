"""Which full KV blocks hold which committed tokens: a trie over blocks, exact, no hashing tricks.

A node is one full block of tokens behind its parent node. Node numbers are never reused,
so a child of an evicted parent can never be found under another content. Knows no
sequences, no tensors and no reference counts; called by the engine only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROOT = -1
Key = tuple[int, tuple[int, ...]]  # (parent node, the block's tokens)


class CachedBlock(NamedTuple):
    """One block found in the cache."""

    block: int
    node: int


class PrefixCache:
    """Content of full blocks; remembers only committed tokens because only those are put in."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: dict[Key, CachedBlock] = {}
        self._keys: dict[int, Key] = {}  # block -> its entry
        self._next_node = 0

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[CachedBlock]:
        """The longest chain of cached blocks that spell the start of ``tokens``."""
        found: list[CachedBlock] = []
        size, node = self._block_size, ROOT
        for start in range(0, max_blocks * size, size):
            entry = self._entries.get((node, tuple(tokens[start : start + size])))
            if entry is None:
                break
            found.append(entry)
            node = entry.node
        return found

    def insert(self, parent: int, tokens: Sequence[int], block: int) -> int:
        """Remember a full block; content known already keeps its first block. Returns the node."""
        key = (parent, tuple(tokens))
        if len(key[1]) != self._block_size:
            raise ValueError(f"a cached block holds {self._block_size} tokens, got {len(key[1])}")
        entry = self._entries.get(key)
        if entry is None:
            entry = CachedBlock(block, self._next_node)
            self._next_node += 1
            self._entries[key] = entry
            self._keys[block] = key
        return entry.node

    def forget(self, block: int) -> None:
        """Drop the entry of a block whose content is being given up."""
        del self._entries[self._keys.pop(block)]

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __len__(self) -> int:
        return len(self._entries)
