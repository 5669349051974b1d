"""Random histories of open, forward, settle, keep, release and close against fresh prefills.

After every action the block books balance; after every commit the KV of the committed
tokens equals a plain prefill's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specdist.engine.engine import Engine
from specdist.engine.scheduler import Plan, Scheduler
from specdist.engine.sequence import Rows, Sequence, chain_rows
from tests.integration.engine.engine_rig import (
    close,
    compute,
    fresh_kv,
    grow,
    kv_of,
    make_engine,
    text,
    truth,
)

NAMES = st.sampled_from("abc")
TOKENS = st.integers(3, 6)  # few, so that prefixes and branches meet
MAX_LEN = 60


class EngineMachine(RuleBasedStateMachine):
    """Three sessions in a pool that is too small for them."""

    kind: ClassVar[str] = "llama"

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine = make_engine(self.kind, num_blocks=20, block_size=2)

    @rule(name=NAMES, tokens=st.lists(TOKENS, min_size=1, max_size=12))
    def open(self, name: str, tokens: list[int]) -> None:
        if self.engine.get(name) is None:
            seq = self.engine.open(name, tokens)
            cached = self.engine.attach_prefix(seq)
            assert cached < len(tokens)

    @rule(name=NAMES, data=st.data())
    def forward(self, name: str, data: st.DataObject) -> None:
        seq = self.engine.get(name)
        if seq is None or seq.num_slots_used > MAX_LEN:
            return
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=5))
        start = len(seq.region_tokens)
        parents = [data.draw(st.integers(-1, start + i - 1)) for i in range(len(tokens))]
        if self.engine.reserve(seq, len(tokens)):
            grow(self.engine, seq, tokens, parents)

    @rule(name=NAMES, data=st.data())
    def settle(self, name: str, data: st.DataObject) -> None:
        """Commit some path, ignoring what the tokens were meant to be: the region decides."""
        seq = self.engine.get(name)
        if seq is None:
            return
        path = self._some_path(seq, data)
        end = path[-1] if path else -1
        keep = self._some_descendants(seq, end, data)
        kept = [seq.region_tokens[row] for row in keep]
        seq.tokens[seq.num_computed :] = [seq.region_tokens[row] for row in path]
        if not seq.tokens:
            seq.tokens.append(3)
        self.engine.settle(seq, path, keep)
        assert seq.region_tokens == kept
        if path:
            fresh = fresh_kv(seq.tokens, self.kind)[:, :, :, : seq.num_computed]
            assert close(kv_of(self.engine, seq), fresh)

    def _some_path(self, seq: Sequence, data: st.DataObject) -> list[int]:
        path: list[int] = []
        while True:
            end = path[-1] if path else -1
            children = [row for row, p in enumerate(seq.region_parents) if p == end]
            choice = data.draw(st.sampled_from([None, *children]))
            if choice is None:
                return path
            path.append(choice)

    def _some_descendants(self, seq: Sequence, end: int, data: st.DataObject) -> list[int]:
        keep: list[int] = []
        for row in range(end + 1, len(seq.region_tokens)):
            parent = seq.region_parents[row]
            if (parent == end or parent in keep) and data.draw(st.booleans()):
                keep.append(row)
        return keep

    @rule(name=NAMES)
    def catch_up(self, name: str) -> None:
        seq = self.engine.get(name)
        if seq is None or seq.region_tokens or not seq.num_uncomputed:
            return
        if self.engine.reserve(seq, seq.num_uncomputed):
            first = seq.num_computed
            assert close(compute(self.engine, seq, 5), truth(seq.tokens, self.kind)[first:])

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        seq = self.engine.get(name)
        if seq is not None:
            self.engine.release(seq)
            self.engine.attach_prefix(seq)

    @rule(name=NAMES)
    def close_session(self, name: str) -> None:
        self.engine.close(name)

    @invariant()
    def books_balance(self) -> None:
        self.engine.check_integrity()


class WindowedMachine(EngineMachine):
    kind = "gemma3"


for machine in (EngineMachine, WindowedMachine):
    machine.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestEngineMachine = EngineMachine.TestCase
TestWindowedMachine = WindowedMachine.TestCase


@dataclass
class Outcome:
    """Answers by session, and how often somebody was preempted."""

    answers: dict[str, list[int]] = field(default_factory=dict)
    num_preempted: int = 0


def generate_all(engine: Engine, prompts: list[list[int]], length: int, width: int) -> Outcome:
    """Greedy answers through the scheduler, with ``width`` candidates that are mostly wrong."""
    scheduler, outcome = Scheduler(engine, engine.config), Outcome()
    for index, prompt in enumerate(prompts):
        scheduler.add(engine.open(str(index), prompt))
    for step in range(2000):
        if not scheduler.has_work:
            return outcome
        plan = scheduler.plan({str(i): width for i in range(len(prompts))})
        outcome.num_preempted += len(plan.preempted)
        items = _items(plan, step)
        for rows, logits in zip(items, engine.forward(items) if items else [], strict=True):
            _commit(engine, rows, logits)
        for seq in [*plan.exhausted, *(rows.seq for rows in items)]:
            answer = seq.tokens[len(prompts[int(seq.session_id)]) :]
            if seq in plan.exhausted or len(answer) >= length:
                outcome.answers[seq.session_id] = answer
                engine.close(seq.session_id)
                scheduler.remove(seq.session_id)
        engine.check_integrity()
    raise AssertionError("no end after 2000 steps")


def _items(plan: Plan, step: int) -> list[Rows]:
    items = [
        chain_rows(seq, seq.tokens[seq.num_computed : seq.num_computed + n], [n - 1])
        for seq, n in plan.prefills
    ]
    for seq, granted in plan.decodes:
        tokens, parents = [seq.tokens[-1], *text(granted, step)], [-1, *[0] * granted]
        items.append(Rows(seq, tokens, parents, range(1 + granted)))
    return items


def _commit(engine: Engine, rows: Rows, logits: torch.Tensor) -> None:
    seq = rows.seq
    if seq.num_uncomputed > 1:  # a prefill chunk
        count = len(rows.tokens)
        engine.settle(seq, range(count))
        if not seq.num_uncomputed:
            seq.tokens.append(int(logits[-1].argmax()))
        return
    path, token = [0], int(logits[0].argmax())
    seq.tokens.append(token)
    hits = [row for row in range(1, len(rows.tokens)) if rows.tokens[row] == token]
    if hits:
        path.append(hits[0])
        seq.tokens.append(int(logits[hits[0]].argmax()))
    engine.settle(seq, path)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("width", [0, 6])
def test_preempted_answers_are_the_same(kind: str, width: int) -> None:
    """B092, B090, B083: a pool too small for three requests changes nothing but the time."""
    prompts = [text(n, seed) for seed, n in enumerate((9, 14, 21))]
    roomy = make_engine(kind, num_blocks=64, max_prefill_chunk=5)
    expected = generate_all(roomy, prompts, 24, 0)
    tight = make_engine(kind, num_blocks=16, max_prefill_chunk=5)
    got = generate_all(tight, prompts, 24, width)
    assert expected.num_preempted == 0 and got.num_preempted > 0
    for name, answer in expected.answers.items():
        assert got.answers[name][:24] == answer[:24]
    assert tight.usage().num_held == 0


def test_one_request_larger_than_the_pool_ends_and_others_go_on() -> None:
    """B093: 4 blocks; the long answer is cut with what it has, the next request is served."""
    engine = make_engine(num_blocks=4)
    outcome = generate_all(engine, [text(7), text(5, 1)], 200, 4)
    assert [len(outcome.answers[name]) for name in "01"] == [10, 12]
    assert engine.usage().num_held == 0
