"""One model on one device: sequences, their KV, and forward passes over many of them.

A sequence is committed tokens with computed KV plus a speculative region, a tree of extra
KV rows behind it (``specdist.engine.sequence``). ``forward`` adds rows to regions,
``settle`` turns a path of them into committed KV and drops the rest: prefill, decode,
verification and draft growth are the same two calls. Knows no drafting rule, no sampling,
no Ray; called by the workers and the drafters, from one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items

from torch import Tensor

from specdist.config import EngineConfig
from specdist.engine import batch as layout
from specdist.engine.block_pool import BlockPool
from specdist.engine.kv_cache import KvCache
from specdist.engine.loader import LoadedModel
from specdist.engine.memory import num_blocks_for
from specdist.engine.model_runner import ModelRunner
from specdist.engine.prefix_cache import ROOT, PrefixCache
from specdist.engine.sequence import KvUsage, Rows, Sequence
from specdist.errors import ConfigError, InternalError, InvalidRequestError


class Engine:
    """Sequences by session id over one block pool; see the module docstring."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        vocab_size: int | None = None,
        masked_ids: Items[int] = (),
    ) -> None:
        """Logits have ``vocab_size`` columns; those of ``masked_ids`` are -inf."""
        self.config = config
        self.block_size = config.block_size
        self.vocab_size = vocab_size or loaded.vocab_size
        self.eos_token_ids = loaded.eos_token_ids
        self.max_model_len = _model_len(config.max_model_len, loaded.max_model_len)
        self.num_embeddings = loaded.num_embeddings
        self.device = loaded.device
        block_bytes = loaded.kv_shape.token_bytes * self.block_size
        self.num_blocks = num_blocks_for(config, block_bytes, self.max_model_len, loaded.device)
        self.kv = KvCache(loaded.kv_shape, self.num_blocks * self.block_size, loaded.device)
        self._prefixes = PrefixCache(self.block_size)
        self._pool = BlockPool(self.num_blocks, on_evict=self._prefixes.forget)
        self._runner = ModelRunner(loaded, self.vocab_size, masked_ids)
        self._options = layout.BatchOptions(loaded.group_size, loaded.dtype, loaded.device)
        self._sequences: dict[str, Sequence] = {}

    def open(self, session_id: str, tokens: Items[int]) -> Sequence:
        """Register a session; nothing is computed or reserved yet."""
        if session_id in self._sequences:
            raise InternalError(f"session {session_id!r} is open already")
        self.check_prompt(tokens)
        seq = Sequence(session_id, list(tokens))
        self._sequences[session_id] = seq
        return seq

    def check_prompt(self, tokens: Items[int]) -> None:
        """Raise InvalidRequestError if these tokens can never be a session; any thread."""
        if not tokens:
            raise InvalidRequestError("prompt must hold at least 1 token, got 0", param="prompt")
        wrong = next((t for t in tokens if not 0 <= t < self.num_embeddings), None)
        if wrong is not None:
            raise InvalidRequestError(
                f"token ids must be between 0 and {self.num_embeddings - 1}, got {wrong}",
                param="prompt",
            )
        code = "context_length_exceeded"
        if len(tokens) >= self.max_model_len:
            raise InvalidRequestError(
                f"the context holds {self.max_model_len} tokens, answer included, "
                f"but the prompt has {len(tokens)}",
                param="prompt",
                code=code,
            )
        needed = self._blocks_for(len(tokens))
        if needed > self.num_blocks:
            raise InvalidRequestError(
                f"the prompt's {len(tokens)} tokens need {needed} KV blocks of {self.block_size}, "
                f"but the cache has {self.num_blocks}",
                param="prompt",
                code=code,
            )

    def get(self, session_id: str) -> Sequence | None:
        """The open session of that id."""
        return self._sequences.get(session_id)

    def attach_prefix(self, seq: Sequence) -> int:
        """Take what the prefix cache holds of the tokens, never the last one; returns its size."""
        if seq.num_computed or seq.block_table:
            raise InternalError(f"session {seq.session_id!r} holds KV already: release it first")
        seq.num_cached_tokens = 0
        if self.config.prefix_cache:
            most = (len(seq.tokens) - 1) // self.block_size
            for found in self._prefixes.match(seq.tokens, most):
                self._pool.share(found.block)
                seq.block_table.append(found.block)
                seq.prefix_nodes.append(found.node)
            seq.num_cached_tokens = seq.num_computed = len(seq.block_table) * self.block_size
        return seq.num_cached_tokens

    def reserve(self, seq: Sequence, num_rows: int) -> bool:
        """Hold enough blocks for ``num_rows`` more rows; False (and no change) if impossible."""
        missing = self._blocks_for(seq.num_slots_used + num_rows) - len(seq.block_table)
        if missing <= 0:
            return True
        last = seq.block_table[-1] if seq.block_table else None
        blocks = self._pool.allocate(missing, after=last)
        if blocks is None:
            return False
        seq.block_table += blocks
        return True

    def _blocks_for(self, num_slots: int) -> int:
        return -(-num_slots // self.block_size)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that reserve() could still hand out."""
        return self._pool.num_available

    def forward(self, items: Items[Rows]) -> list[Tensor]:
        """One pass over the new rows of all items; see Rows. Regions grow only if it succeeds."""
        for rows in items:
            self._check_rows(rows)
        if len({id(rows.seq) for rows in items}) != len(items):
            raise ValueError("a sequence may stand in a forward pass only once")
        batch = layout.Batch(items, self.block_size, self.kv.layers, self._options)
        for lay in batch.layouts:
            if max(lay.positions) >= self.max_model_len:
                raise ValueError(
                    f"session {lay.rows.seq.session_id!r}: position {max(lay.positions)} is "
                    f"beyond the context of {self.max_model_len} tokens"
                )
        logits = self._runner.forward(batch)
        for lay in batch.layouts:
            seq = lay.rows.seq
            seq.region_tokens += lay.rows.tokens
            seq.region_parents += lay.rows.parents
            seq.region_depths += lay.depths
        return logits

    def _check_rows(self, rows: Rows) -> None:
        seq, count = rows.seq, len(rows.tokens)
        where = f"session {seq.session_id!r}"
        if self._sequences.get(seq.session_id) is not seq:
            raise InternalError(f"{where} is not open")
        if not count or count != len(rows.parents):
            raise ValueError(f"{where}: {count} rows with {len(rows.parents)} parents")
        if any(not 0 <= row < count for row in rows.logits):
            raise ValueError(f"{where}: logits of rows {list(rows.logits)}, but rows are {count}")
        if any(not 0 <= token < self.num_embeddings for token in rows.tokens):
            raise ValueError(f"{where}: token ids must be below {self.num_embeddings}")
        slots = len(seq.block_table) * self.block_size
        if seq.num_slots_used + count > slots:
            raise InternalError(
                f"{where}: {seq.num_slots_used + count} slots needed, {slots} reserved"
            )

    def settle(self, seq: Sequence, path: Items[int], keep: Items[int] = ()) -> None:
        """Commit the region rows of ``path``, keep those of ``keep`` behind them, drop the rest."""
        order = self._checked_order(seq, path, keep)
        base = seq.num_computed
        moved = [(row, new) for new, row in enumerate(order) if row != new]
        if moved:
            slots = layout.physical_slots(
                seq.block_table, self.block_size, base, seq.num_slots_used
            )
            self.kv.move([slots[row] for row, _ in moved], [slots[new] for _, new in moved])
        new_index = {row: new for new, row in enumerate(order[len(path) :])}
        tokens = [seq.region_tokens[row] for row in keep]
        parents = [new_index.get(seq.region_parents[row], -1) for row in keep]
        seq.clear_region()
        seq.num_computed += len(path)
        seq.region_depths += seq.depths_of(parents)
        seq.region_tokens += tokens
        seq.region_parents += parents
        self._remember_full_blocks(seq)
        self._trim(seq)

    def _checked_order(self, seq: Sequence, path: Items[int], keep: Items[int]) -> list[int]:
        where, end = f"session {seq.session_id!r}", -1
        for step, row in enumerate(path):
            if not 0 <= row < len(seq.region_tokens) or seq.region_parents[row] != end:
                raise InternalError(f"{where}: region row {row} is not a child of row {end}")
            position, token = seq.num_computed + step, seq.region_tokens[row]
            if position >= len(seq.tokens) or seq.tokens[position] != token:
                raise InternalError(
                    f"{where}: region row {row} holds token {token}, which is not the "
                    f"committed token {position}"
                )
            end = row
        allowed, last = {end}, end
        for row in keep:
            if not last < row < len(seq.region_tokens) or seq.region_parents[row] not in allowed:
                raise InternalError(f"{where}: kept row {row} is out of order or has no parent")
            allowed.add(row)
            last = row
        return [*path, *keep]

    def _remember_full_blocks(self, seq: Sequence) -> None:
        if not self.config.prefix_cache:
            return
        size = self.block_size
        for index in range(len(seq.prefix_nodes), seq.num_computed // size):
            parent = seq.prefix_nodes[-1] if seq.prefix_nodes else ROOT
            tokens = seq.tokens[index * size : (index + 1) * size]
            seq.prefix_nodes.append(self._prefixes.insert(parent, tokens, seq.block_table[index]))

    def _trim(self, seq: Sequence) -> None:
        # Blocks for committed tokens that are still to be computed stay: a prompt reserved
        # as a whole must not lose its blocks between two chunks.
        needed = self._blocks_for(max(seq.num_slots_used, len(seq.tokens)))
        self._give_back(seq.block_table[needed:])
        del seq.block_table[needed:]

    def _give_back(self, blocks: Items[int]) -> None:
        # The tail first: it is given up first, and a chain is never cut in the middle.
        self._pool.release(reversed(blocks), self._prefixes.__contains__)

    def release(self, seq: Sequence) -> None:
        """Preempt: give all blocks back; tokens stay, everything is to be computed again."""
        self._give_back(seq.block_table)
        seq.block_table.clear()
        seq.prefix_nodes.clear()
        seq.clear_region()
        seq.num_computed = 0

    def close(self, session_id: str) -> None:
        """Forget a session and free its KV; an unknown id is no error (cancelled twice)."""
        seq = self._sequences.pop(session_id, None)
        if seq is not None:
            self.release(seq)

    @property
    def sequences(self) -> Iterable[Sequence]:
        """All open sequences."""
        return self._sequences.values()

    def usage(self) -> KvUsage:
        """Blocks by state and the size of the cache."""
        held = self.num_blocks - self._pool.num_available
        return KvUsage(self._pool.num_free, self._pool.num_cached, held, self.kv.num_bytes)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every block is accounted for exactly once."""
        held = Counter(b for seq in self._sequences.values() for b in seq.block_table)
        self._pool.check_integrity(held)
        if self._pool.num_cached > len(self._prefixes):
            raise RuntimeError("more cached blocks than the prefix cache knows")


def _model_len(wanted: int | None, limit: int) -> int:
    if wanted is not None and wanted > limit:
        raise ConfigError(f"max_model_len must be at most the model's {limit}, got {wanted}")
    return wanted or limit
