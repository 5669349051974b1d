"""TTFT, ITL, TPOT and E2E by their definitions, with chunks of several tokens."""

from __future__ import annotations

import pytest

from specdist.metrics.latency import RequestLatency, length_bucket
from specdist.metrics.recorder import Recorder


def sums(recorder: Recorder) -> dict[str, tuple[int, float]]:
    histograms = recorder.take_delta()["histograms"]
    return {
        name.removeprefix("specdist_").removesuffix("_seconds"): (sum(d["buckets"]), d["sum"])
        for (name, _), d in histograms.items()
    }


def test_one_answer() -> None:
    recorder = Recorder("Router:a")
    latency = RequestLatency(recorder, 100, arrived_s=10.0)
    latency.opened(10.5)
    latency.chunk(1, 11.0)
    latency.chunk(4, 11.4)
    latency.chunk(0, 11.5)  # a last chunk without tokens
    latency.chunk(2, 12.2)
    latency.finished(12.2)
    found = sums(recorder)
    assert found["request_queue_time"] == (1, 0.5)
    assert found["time_to_first_token"] == (1, 1.0)
    assert found["inter_token_latency"] == (2, pytest.approx(1.2))
    assert found["time_per_output_token"] == (1, pytest.approx(1.2 / 6))
    assert found["e2e_request_latency"] == (1, pytest.approx(2.2))
    assert found["tokens_per_chunk"] == (3, 7)


def test_one_token_has_no_time_per_output_token() -> None:
    recorder = Recorder("Router:a")
    latency = RequestLatency(recorder, 1, arrived_s=0.0)
    latency.chunk(1, 1.0)
    latency.finished(1.0)
    assert "time_per_output_token" not in sums(recorder)


def test_length_labels_are_few() -> None:
    labels = {length_bucket(n) for n in range(1, 9000)}
    assert labels == {"le_128", "le_512", "le_2048", "gt_2048"}
