"""Which sequences compute what in the next forward pass: budget, chunks, preemption.

Decodes come first (one root row each, then candidates), prefill chunks take what is left;
while prompts wait, a share of the rows is kept for them, so that neither starves. First
come, first served. When KV blocks run out, candidates shrink, then the latest arrival is
preempted: its blocks are given back and it waits at the front to be computed again. A
sequence that is alone and still cannot grow is reported as exhausted. Knows no torch and
no sampling; called by the target worker between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specdist.config import EngineConfig
from specdist.engine.sequence import Sequence

PREFILL_SHARE = 4  # while prompts wait, candidates leave them one row in so many


class KvAllocator(Protocol):
    """What the scheduler needs of the engine."""

    @property
    def num_available_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    def attach_prefix(self, seq: Sequence) -> int: ...

    def reserve(self, seq: Sequence, num_rows: int) -> bool: ...

    def release(self, seq: Sequence) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Blocks for every row in it are reserved."""

    prefills: list[tuple[Sequence, int]] = field(default_factory=list)  # (seq, next tokens)
    decodes: list[tuple[Sequence, int]] = field(default_factory=list)  # (seq, candidates granted)
    preempted: list[Sequence] = field(default_factory=list)
    exhausted: list[Sequence] = field(default_factory=list)  # can never grow: end and remove them

    @property
    def num_rows(self) -> int:
        """Token rows of the forward pass."""
        return sum(n for _, n in self.prefills) + sum(1 + n for _, n in self.decodes)


class Scheduler:
    """Waiting and running sequences of one engine, both in order of arrival."""

    def __init__(self, kv: KvAllocator, config: EngineConfig) -> None:
        self._kv = kv
        self._max_rows = config.max_step_tokens
        self._max_chunk = config.max_prefill_chunk
        self._max_running = config.max_num_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self._turns: dict[str, int] = {}  # session id -> number of its latest turn
        self._next_turn = 1

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(seq)

    def remove(self, session_id: str) -> None:
        """Forget a sequence, wherever it stands; its KV is the engine's business."""
        for queue in (self.waiting, self.running):
            for seq in [s for s in queue if s.session_id == session_id]:
                queue.remove(seq)
        self._turns.pop(session_id, None)

    @property
    def has_work(self) -> bool:
        """Whether a plan could hold anything."""
        return bool(self.waiting or self.running)

    def plan(self, num_candidates: Mapping[str, int]) -> Plan:
        """The next step, given how many candidates each decoding session could use."""
        plan = Plan()
        self._plan_decodes(plan, num_candidates)
        self._plan_prefills(plan)
        self._admit(plan)
        return plan

    # --- decodes ---------------------------------------------------------------------

    def _plan_decodes(self, plan: Plan, num_candidates: Mapping[str, int]) -> None:
        ready = [seq for seq in self.running if seq.num_uncomputed == 1]
        prompts_wait = len(ready) < len(self.running) or bool(self.waiting)
        kept = max(1, self._max_rows // PREFILL_SHARE) if prompts_wait else 0
        chosen = self._take_turns(ready, max(1, self._max_rows - min(kept, 1)))
        room = max(0, self._max_rows - len(chosen) - kept)
        wanted = [max(0, num_candidates.get(seq.session_id, 0)) for seq in chosen]
        for seq, granted in zip(chosen, fair_shares(wanted, room), strict=True):
            if seq in self.running:  # an earlier one may have preempted it
                self._plan_decode(plan, seq, granted)

    def _take_turns(self, ready: list[Sequence], most: int) -> list[Sequence]:
        """Those whose turn is longest ago, in order of arrival."""
        if len(ready) <= most:
            return ready
        chosen = sorted(ready, key=lambda seq: self._turns.get(seq.session_id, 0))[:most]
        for turn, seq in enumerate(chosen, self._next_turn):
            self._turns[seq.session_id] = turn
        self._next_turn += most
        return [seq for seq in ready if seq in chosen]

    def _plan_decode(self, plan: Plan, seq: Sequence, granted: int) -> None:
        reserved = self._reserve_shrinking(seq, 1 + granted)
        while not reserved:
            if not self._preempt_for(seq, plan):
                return
            reserved = self._reserve_shrinking(seq, 1 + granted)
        plan.decodes.append((seq, reserved - 1))

    def _reserve_shrinking(self, seq: Sequence, num_rows: int) -> int:
        """Rows reserved: as many as fit, halving, 0 if not even one."""
        while num_rows and not self._kv.reserve(seq, num_rows):
            num_rows //= 2
        return num_rows

    def _preempt_for(self, seq: Sequence, plan: Plan) -> bool:
        """Preempt the latest arrival; True if ``seq`` may try again."""
        victim = self.running[-1]
        if victim is seq and len(self.running) == 1:
            plan.exhausted.append(seq)
            return False
        self.running.pop()
        self._kv.release(victim)
        self.waiting.appendleft(victim)
        plan.preempted.append(victim)
        return victim is not seq

    # --- prefills --------------------------------------------------------------------

    def _plan_prefills(self, plan: Plan) -> None:
        # Blocks of a whole prompt were reserved when it was admitted: no chunk can fail.
        for seq in self.running:
            if seq.num_uncomputed > 1:
                self._plan_chunk(plan, seq)

    def _plan_chunk(self, plan: Plan, seq: Sequence) -> None:
        num_tokens = min(seq.num_uncomputed, self._max_chunk, self._max_rows - plan.num_rows)
        if num_tokens > 0:
            plan.prefills.append((seq, num_tokens))

    def _admit(self, plan: Plan) -> None:
        while (
            self.waiting
            and not plan.preempted  # what was just given back must not be taken at once
            and len(self.running) < self._max_running
            and plan.num_rows < self._max_rows
        ):
            seq = self.waiting[0]
            if not self._reserve_prompt(seq):
                if not self.running:
                    plan.exhausted.append(seq)
                return
            self.running.append(self.waiting.popleft())
            self._plan_chunk(plan, seq)

    def _reserve_prompt(self, seq: Sequence) -> bool:
        """Blocks for all committed tokens, leaving one block of air for each running sequence."""
        self._kv.attach_prefix(seq)
        needed = -(-len(seq.tokens) // self._kv.block_size) - len(seq.block_table)
        air = len(self.running)
        if needed + air <= self._kv.num_available_blocks:
            return self._kv.reserve(seq, seq.num_uncomputed)
        self._kv.release(seq)
        return False


def fair_shares(wanted: Iterable[int], room: int) -> list[int]:
    """Cut wishes to ``room`` in all, the largest first, so that small ones are kept whole."""
    wanted = list(wanted)
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for rank, index in enumerate(order):
        shares[index] = min(wanted[index], room // (len(order) - rank))
        room -= shares[index]
    return shares
