"""Predicted speed-ups, worked out by hand."""

from __future__ import annotations

import pytest

from specdist.distill.eval_cost import Work, predict, total_work
from specdist.speculation.cost_model import CostModel


def curve(**ms: float) -> CostModel:
    cost = CostModel(rate=1e-9)
    for rows, value in ms.items():
        cost.observe(int(rows[1:]), value / 1e3)
    return cost


TARGET = curve(n1=10, n2=11, n4=12, n8=16)
DRAFT = curve(n1=2, n2=3, n4=4)


def test_by_hand() -> None:
    # Ten steps: six verify three candidates (12 ms), four none (10 ms). 25 tokens.
    # The draft: twelve passes of one row and three of two, 33 ms in all; 0.7 ms beside.
    work = Work(10, 25, {3: 6, 0: 4}, {1: 12, 2: 3}, drafter_s=0.7e-3)
    found = predict(work, TARGET, DRAFT)
    assert found.tokens_per_step == 2.5
    assert found.target_step_ms == pytest.approx((6 * 12 + 4 * 10) / 10)
    assert found.draft_ms_per_step == pytest.approx(33 / 10 + 0.7)
    assert found.speed_up_shared == pytest.approx(2.5 * 10 / (11.2 + 4.0))
    assert found.speed_up_hidden == pytest.approx(2.5 * 10 / 11.2)


def test_a_slow_draft_cannot_be_hidden() -> None:
    work = Work(1, 4, {3: 1}, {1: 10}, drafter_s=0.0)
    assert predict(work, TARGET, DRAFT).speed_up_hidden == pytest.approx(4 * 10 / 20)


def test_prompt_lookup_costs_only_what_it_took() -> None:
    found = predict(Work(2, 6, {3: 2}, {}, drafter_s=1e-3), TARGET, None)
    assert found.draft_ms_per_step == pytest.approx(1.0)
    assert found.speed_up_shared == pytest.approx(3 * 10 / 13)


def test_no_step_is_no_speed_up() -> None:
    found = predict(Work(0, 0, {}, {}, 0.0), TARGET, DRAFT)
    assert (found.speed_up_shared, found.speed_up_hidden, found.tokens_per_step) == (1, 1, 0)


def test_groups_add_up() -> None:
    parts = [
        Work(10, 25, {3: 6, 0: 4}, {1: 12}, drafter_s=1e-3),
        Work(30, 35, {3: 30}, {1: 5, 2: 1}, drafter_s=3e-3),
    ]
    total = total_work(parts)
    assert (total.num_steps, total.num_tokens) == (40, 60)
    assert (dict(total.candidates), dict(total.draft_passes)) == ({3: 36, 0: 4}, {1: 17, 2: 1})
    assert total.drafter_s == pytest.approx(2.5e-3)
