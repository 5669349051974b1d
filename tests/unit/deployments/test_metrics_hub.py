"""The pusher: exactly once while the hub lives, nothing lost when it is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments import metrics_hub
from deployments.gauges import record_stats
from deployments.metrics_hub import MetricsHub, MetricsPusher
from specdist.metrics.recorder import Recorder

DRAFTED = "specdist_spec_decode_num_draft_tokens"


class Method:
    def __init__(self, hub: FakeHub, name: str) -> None:
        self._hub, self._name = hub, name

    def remote(self, *arguments: Any) -> Any:
        self._hub.calls += 1
        if self._hub.lose_request:
            raise TimeoutError("the hub does not answer")
        result = asyncio.run(getattr(self._hub.hub, self._name)(*arguments))
        if self._hub.lose_answer:
            raise TimeoutError("the answer was lost")
        return result


class FakeHub:
    """The hub without Ray; requests or answers can get lost."""

    def __init__(self) -> None:
        self.hub = MetricsHub()
        self.calls = 0
        self.lose_request = self.lose_answer = False
        self.push = Method(self, "push")
        self.render = Method(self, "render")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(metrics_hub.ray, "get", lambda value, timeout: value)
    return FakeHub()


@pytest.mark.parametrize("trouble", ["lose_request", "lose_answer"])
def test_delta_that_failed_is_sent_again_and_counted_once(hub: FakeHub, trouble: str) -> None:
    recorder = Recorder("Target:a")
    pusher = MetricsPusher(recorder, "app", connect=lambda name: hub)
    recorder.count(DRAFTED, 3)
    setattr(hub, trouble, True)
    with pytest.raises(TimeoutError):
        pusher.flush()
    recorder.count(DRAFTED, 4)
    setattr(hub, trouble, False)
    assert f"{DRAFTED}_total 3.0" in pusher.render()
    assert f"{DRAFTED}_total 7.0" in pusher.render()


def test_gauges_are_sampled_before_each_push(hub: FakeHub) -> None:
    recorder = Recorder("Target:a")
    stats = {"num_requests_running": 2.0, "kv_cache_usage_ratio": 0.5, "unknown": 1.0}
    pusher = MetricsPusher(
        recorder,
        "app",
        lambda: record_stats(recorder, "Target", stats),
        connect=lambda name: hub,
    )
    text = pusher.render()
    assert 'specdist_num_requests_running{deployment="Target"} 2.0' in text
    assert 'specdist_kv_cache_usage_ratio{deployment="Target"} 0.5' in text
    assert 'specdist_memory_bytes{deployment="Target",device="host"}' in text
