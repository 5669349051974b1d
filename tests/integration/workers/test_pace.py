"""The counters behind the speed-up, from the real loop of a tiny pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdist.config import SpeculationConfig
from specdist.metrics.recorder import Recorder
from specdist.workers.observing import TargetMetrics
from tests.pair import Pair
from tests.tiny_models import build_tiny


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def counted(pair: Pair) -> tuple[dict[Any, float], float]:
    """The target's counters and its seconds in engine steps, from one answer."""
    recorder = Recorder("Target:t0")
    pair.target._metrics = TargetMetrics(recorder)
    pair.generate([[5, 6, 7]], max_tokens=24)
    delta = recorder.take_delta()
    steps = delta["histograms"]["specdist_engine_step_seconds", ("Target",)]
    return {name: value for (name, _), value in delta["counters"].items()}, steps["sum"]


def test_plain_decoding_is_its_own_baseline() -> None:
    model = build_tiny("llama", layers=1, seed=1)
    off = SpeculationConfig(mode="off")
    counters, step_s = counted(Pair(model, model, speculation=off))
    assert counters["specdist_plain_step_seconds"] == pytest.approx(step_s)
    assert counters["specdist_candidate_wait_seconds"] == 0


def test_accepted_candidates_are_worth_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_tiny("llama", layers=1, seed=1)
    pair = Pair(model, model, speculation=SpeculationConfig(mode="tree"))
    monkeypatch.setattr(pair.target._choice.cost, "step_s", lambda num_rows: 1.0)  # a wide device
    counters, step_s = counted(pair)
    assert counters["specdist_spec_decode_num_accepted_tokens"] > 0
    assert counters["specdist_plain_step_seconds"] > 1.5 * step_s
