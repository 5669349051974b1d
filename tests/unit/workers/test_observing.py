"""What plain decoding would have needed for a step's tokens: the other half of the speed-up."""

from __future__ import annotations

import pytest

from specdist.engine.scheduler import Plan
from specdist.metrics.recorder import Recorder
from specdist.protocol.verdict import Verdict
from specdist.speculation.cost_model import CostModel
from specdist.workers.observing import TargetMetrics, plain_step_s


def cost_model() -> CostModel:
    """1 row 1 s, 2 rows 2 s, up to 8 rows 4 s, up to 64 rows 8 s."""
    cost = CostModel(edges=(1, 2, 8, 64))
    for num_rows, seconds in ((1, 1.0), (2, 2.0), (8, 4.0), (64, 8.0)):
        cost.observe(num_rows, seconds)
    return cost


def verdict(num_draft_tokens: int, num_accepted: int) -> Verdict:
    tokens = tuple(range(num_accepted + 1))
    return Verdict("s", 5, tokens, num_accepted, num_draft_tokens)


def plan(*candidates: int, prefill: int = 0) -> Plan:
    sequence: object = object()  # only counted
    prefills = [(sequence, prefill)] if prefill else []
    return Plan(prefills=prefills, decodes=[(sequence, n) for n in candidates])  # type: ignore


@pytest.mark.parametrize(
    ("step_plan", "verdicts", "step_s", "expected_s"),
    [
        (plan(0), [verdict(0, 0)], 1.3, 1.3),  # a plain step is its own measure
        (plan(7), [verdict(7, 3)], 4.0, 4.0),  # 4 tokens: 4 plain steps of 1 s, or 1 of 4 s
        (plan(7), [verdict(7, 0)], 4.0, 1.0),  # all in vain: plain had needed a quarter
        (plan(7), [verdict(7, 7)], 4.0, 8.0),
        (plan(7), [verdict(7, 7)], 8.0, 16.0),  # twice as slow today: plain would be, too
        (plan(3, 3), [verdict(3, 2), verdict(3, 0)], 4.0, 2.0 + 2.0),  # two share each step
        (plan(3, prefill=40), [verdict(3, 3)], 8.0, 8.0 + 3.0),  # the prefill counts once
    ],
)
def test_plain_step(
    step_plan: Plan, verdicts: list[Verdict], step_s: float, expected_s: float
) -> None:
    assert plain_step_s(cost_model(), step_s, step_plan, verdicts) == pytest.approx(expected_s)


def test_pace_is_counted() -> None:
    recorder = Recorder("Target:t")
    metrics = TargetMetrics(recorder)
    metrics.observe_pace(0.25, 2.0)
    metrics.observe_pace(0.0, 3.0)
    counters = recorder.take_delta()["counters"]
    assert counters["specdist_candidate_wait_seconds", ()] == 0.25
    assert counters["specdist_plain_step_seconds", ()] == 5.0
