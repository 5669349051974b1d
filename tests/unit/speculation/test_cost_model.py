"""The measured cost of a step: monotone, a staircase, updated online."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdist.speculation.cost_model import DEFAULT_EDGES, CostModel

MEASUREMENTS = st.lists(st.tuples(st.integers(1, 700), st.floats(1e-6, 10)), min_size=1)


@given(MEASUREMENTS)
def test_cost_never_falls_with_more_rows(measurements) -> None:
    model = CostModel()
    for rows, seconds in measurements:
        model.observe(rows, seconds)
    costs = [model.step_s(n) for n in range(1, 800)]
    assert all(math.isfinite(c) and c > 0 for c in costs)
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(costs))


@given(MEASUREMENTS)
def test_survives_a_trip_through_json(measurements) -> None:
    model = CostModel()
    for rows, seconds in measurements:
        model.observe(rows, seconds)
    copy = CostModel.from_dict(json.loads(json.dumps(model.to_dict())))
    for m in (model, copy):
        m.observe(9, 0.5)
    assert copy.to_dict() == model.to_dict()
    assert [copy.step_s(n) for n in (1, 7, 600)] == [model.step_s(n) for n in (1, 7, 600)]


def test_stairs() -> None:
    model = CostModel(edges=(1, 4, 8))
    for rows, seconds in ((1, 1.0), (4, 1.2), (8, 2.0)):
        model.observe(rows, seconds)
    assert [model.step_s(n) for n in (1, 2, 4, 5, 8, 16)] == [1.0, 1.2, 1.2, 2.0, 2.0, 4.0]
    assert [model.step_end(n) for n in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, 9]


def test_unmeasured_stairs_lie_on_a_line() -> None:
    model = CostModel(edges=(2, 4, 8))
    model.observe(2, 1.0)
    model.observe(8, 4.0)
    assert model.step_s(4) == pytest.approx(2.0)
    low = CostModel(edges=(1, 4, 8))
    low.observe(4, 1.0)
    assert low.step_s(1) == 1.0 and low.step_s(8) == 2.0


def test_drift_is_followed_and_one_outlier_is_not() -> None:
    model = CostModel()
    for _ in range(50):
        model.observe(1, 0.010)
    model.observe(1, 0.050)
    assert model.step_s(1) < 0.015
    for _ in range(60):
        model.observe(1, 0.020)
    assert model.step_s(1) == pytest.approx(0.020, rel=0.05)


def test_questions_without_an_answer_are_errors() -> None:
    model = CostModel()
    assert not model.is_measured and model.edges == DEFAULT_EDGES
    with pytest.raises(LookupError, match="no measurement"):
        model.step_s(1)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be positive and finite"):
            model.observe(1, seconds)
    with pytest.raises(ValueError, match="num_rows must be at least 1, got 0"):
        model.observe(0, 1.0)
    with pytest.raises(ValueError, match="edges must be positive and rising"):
        CostModel(edges=(4, 2))
