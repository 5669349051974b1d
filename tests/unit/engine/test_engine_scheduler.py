"""The scheduler against a fake allocator: budget, chunks, preemption, progress."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specdist.config import EngineConfig
from specdist.engine.scheduler import Plan, Scheduler, fair_shares
from specdist.engine.sequence import Sequence


class FakeKv:
    """Counts blocks; no content, no prefix cache."""

    def __init__(self, num_blocks: int, block_size: int = 4) -> None:
        self.block_size = block_size
        self.free = num_blocks
        self.tables: dict[str, int] = {}

    @property
    def num_available_blocks(self) -> int:
        return self.free

    def attach_prefix(self, seq: Sequence) -> int:
        return 0

    def reserve(self, seq: Sequence, num_rows: int) -> bool:
        needed = -(-(seq.num_computed + num_rows) // self.block_size)
        missing = max(0, needed - self.tables.get(seq.session_id, 0))
        if missing > self.free:
            return False
        self.free -= missing
        self.tables[seq.session_id] = self.tables.get(seq.session_id, 0) + missing
        return True

    def release(self, seq: Sequence) -> None:
        self.free += self.tables.pop(seq.session_id, 0)
        seq.num_computed = 0


class Rig:
    """A scheduler, its fake engine, and a step that accepts every candidate or none."""

    def __init__(self, num_blocks: int = 1000, **settings: int) -> None:
        self.kv = FakeKv(num_blocks)
        self.scheduler = Scheduler(self.kv, EngineConfig(**settings))
        self.seqs: dict[str, Sequence] = {}

    def add(self, name: str, num_tokens: int) -> Sequence:
        seq = Sequence(name, [1] * num_tokens)
        self.seqs[name] = seq
        self.scheduler.add(seq)
        return seq

    def step(self, candidates: int = 0, accept: int = 0) -> Plan:
        plan = self.scheduler.plan(dict.fromkeys(self.seqs, candidates))
        for seq, count in plan.prefills:
            seq.num_computed += count
            if seq.num_computed == len(seq.tokens):
                seq.tokens.append(1)
        for seq, granted in plan.decodes:
            committed = 1 + min(accept, granted)
            seq.num_computed += committed
            seq.tokens += [1] * committed
        for seq in plan.exhausted:
            self.end(seq.session_id)
        return plan

    def end(self, name: str) -> None:
        self.kv.release(self.seqs.pop(name))
        self.scheduler.remove(name)


def names(pairs: list[tuple[Sequence, int]]) -> dict[str, int]:
    return {seq.session_id: count for seq, count in pairs}


def test_prompts_are_computed_in_chunks_then_decoded() -> None:
    rig = Rig(max_step_tokens=64, max_prefill_chunk=10)
    rig.add("a", 25)
    assert [names(rig.step().prefills) for _ in range(3)] == [{"a": 10}, {"a": 10}, {"a": 5}]
    assert names(rig.step(candidates=3).decodes) == {"a": 3}


def test_rows_stay_within_the_budget_and_prompts_keep_a_share() -> None:
    rig = Rig(max_step_tokens=16, max_prefill_chunk=16)
    for name in "abc":
        rig.add(name, 4)
    rig.step()
    rig.add("long", 100)
    plan = rig.step(candidates=16)
    assert plan.num_rows <= 16
    assert len(plan.decodes) == 3 and names(plan.prefills)["long"] >= 4


def test_decodes_beyond_the_budget_take_turns() -> None:
    rig = Rig(max_step_tokens=4, max_prefill_chunk=4)
    for name in "abcdef":
        rig.add(name, 1)
    served = dict.fromkeys("abcdef", 0)
    for _ in range(30):
        plan = rig.step()
        assert plan.num_rows <= 4
        for name in names(plan.decodes):
            served[name] += 1
    assert max(served.values()) - min(served.values()) <= 4 and min(served.values()) > 10


def test_first_come_first_served_and_the_limit_on_sequences() -> None:
    rig = Rig(max_num_sequences=2)
    for name in "abc":
        rig.add(name, 3)
    assert list(names(rig.step().prefills)) == ["a", "b"]
    rig.end("a")
    assert list(names(rig.step().prefills)) == ["c"]


def test_candidates_shrink_before_anybody_is_preempted() -> None:
    rig = Rig(num_blocks=5)
    rig.add("a", 7)
    rig.add("b", 7)
    rig.step()
    plan = rig.step(candidates=8)
    assert not plan.preempted
    assert names(plan.decodes) == {"a": 3, "b": 0}


def test_the_latest_arrival_is_preempted_and_waits_in_front() -> None:
    rig = Rig(num_blocks=4)
    rig.add("a", 6)
    rig.add("b", 4)
    rig.add("c", 3)
    preempted: list[str] = []
    for _ in range(12):
        plan = rig.step()
        preempted += [seq.session_id for seq in plan.preempted]
        if preempted:
            break
    assert preempted == ["b"]
    assert [seq.session_id for seq in rig.scheduler.waiting] == ["b", "c"]


def test_a_lone_sequence_that_cannot_grow_is_exhausted() -> None:
    rig = Rig(num_blocks=4)
    rig.add("a", 10)
    rig.add("next", 3)
    ended: list[str] = []
    for _ in range(30):
        ended += [seq.session_id for seq in rig.step().exhausted]
        if ended:
            break
    assert ended == ["a"]
    assert "next" in names(rig.step().prefills)


def test_removed_sequences_are_never_planned() -> None:
    rig = Rig()
    rig.add("a", 3)
    rig.add("b", 3)
    rig.step()
    rig.end("a")
    assert names(rig.step().decodes) == {"b": 0}
    rig.end("b")
    assert not rig.scheduler.has_work


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 100))
def test_fair_shares(wanted: list[int], room: int) -> None:
    shares = fair_shares(wanted, room)
    assert sum(shares) == min(sum(wanted), room)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert all(share <= min(cut) + 1 for share in shares if share) if cut else True


@settings(max_examples=80, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 24), min_size=1, max_size=8),
    answers=st.integers(1, 12),
    num_blocks=st.integers(3, 20),
    rows=st.integers(2, 24),
    candidates=st.integers(0, 6),
    accept=st.integers(0, 6),
)
def test_everybody_finishes(
    prompts: list[int], answers: int, num_blocks: int, rows: int, candidates: int, accept: int
) -> None:
    """No deadlock, no starvation: every sequence ends, by its length or as exhausted."""
    rig = Rig(num_blocks=num_blocks, max_step_tokens=rows, max_num_sequences=4)
    goal: dict[str, int] = {}
    for index, length in enumerate(prompts):
        rig.add(f"s{index}", length)
        goal[f"s{index}"] = length + answers
    for _ in range(3000):
        if not rig.seqs:
            break
        plan = rig.step(candidates, accept)
        assert plan.num_rows <= rows
        assert plan.num_rows or plan.exhausted or plan.preempted
        for name in [n for n, seq in rig.seqs.items() if len(seq.tokens) >= goal[n]]:
            rig.end(name)
    assert not rig.seqs
    assert rig.kv.free == num_blocks
