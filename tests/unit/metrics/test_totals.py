"""From recorders to Prometheus text."""

from __future__ import annotations

import pickle
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdist.metrics.catalog import CATALOG, ROWS
from specdist.metrics.recorder import Recorder
from specdist.metrics.totals import Totals

DRAFTED = "specdist_spec_decode_num_draft_tokens"
TTFT = "specdist_time_to_first_token_seconds"


def samples(totals: Totals, now_s: float = 0.0) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(totals.render(now_s)):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_counts_of_all_sources_add_up_and_survive_their_source() -> None:
    totals = Totals(gauge_ttl_s=10)
    for name, value in (("Target:a", 5), ("Target:b", 7)):
        recorder = Recorder(name)
        recorder.count(DRAFTED, value)
        recorder.gauge("specdist_num_requests_running", value, deployment="Target")
        totals.add(recorder.take_delta(), 1, now_s=0.0)
    found = samples(totals, now_s=1.0)
    assert found[f"{DRAFTED}_total{{}}"] == 12
    assert found["specdist_num_requests_running{deployment=Target}"] == 12
    assert found["specdist_replicas{deployment=Target}"] == 2
    late = samples(totals, now_s=100.0)
    assert late[f"{DRAFTED}_total{{}}"] == 12
    assert "specdist_num_requests_running{deployment=Target}" not in late


def test_repeated_delta_counts_once() -> None:
    totals, recorder = Totals(), Recorder("Target:a")
    recorder.count(DRAFTED, 3)
    delta = recorder.take_delta()
    assert totals.add(delta, 1, 0.0)
    assert not totals.add(pickle.loads(pickle.dumps(delta)), 1, 0.0)
    assert totals.value(DRAFTED) == 3


def test_delta_holds_only_what_is_new() -> None:
    recorder = Recorder("Target:a")
    recorder.count(DRAFTED, 3)
    recorder.gauge("specdist_kv_blocks_used", 4, deployment="Target")
    recorder.take_delta()
    recorder.count(DRAFTED, 2)
    delta = recorder.take_delta()
    assert delta["counters"] == {(DRAFTED, ()): 2}
    assert delta["gauges"] == {("specdist_kv_blocks_used", ("Target",)): 4}


def test_histogram_is_cumulative_with_sum_and_count() -> None:
    totals, recorder = Totals(), Recorder("Router:a")
    for value in (0.004, 0.005, 0.03, 1000.0):
        recorder.observe(TTFT, value, length_bucket="le_128")
    totals.add(recorder.take_delta(), 1, 0.0)
    found = samples(totals)
    assert found[f"{TTFT}_bucket{{le=0.005,length_bucket=le_128}}"] == 2
    assert found[f"{TTFT}_bucket{{le=0.04,length_bucket=le_128}}"] == 3
    assert found[f"{TTFT}_bucket{{le=+Inf,length_bucket=le_128}}"] == 4
    assert found[f"{TTFT}_count{{length_bucket=le_128}}"] == 4
    assert found[f"{TTFT}_sum{{length_bucket=le_128}}"] == pytest.approx(1000.039)


def test_ratios_are_averaged_over_replicas() -> None:
    totals = Totals()
    for i, value in enumerate((0.2, 0.6)):
        recorder = Recorder(f"Target:{i}")
        recorder.gauge("specdist_kv_cache_usage_ratio", value, deployment="Target")
        totals.add(recorder.take_delta(), 1, 0.0)
    assert samples(totals)["specdist_kv_cache_usage_ratio{deployment=Target}"] == pytest.approx(0.4)


def test_text_is_complete_before_anything_happened() -> None:
    families = {f.name for f in text_string_to_metric_families(Totals().render(0.0))}
    assert families == set(CATALOG)
    assert samples(Totals())[f"{DRAFTED}_total{{}}"] == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: r.count("specdist_nope"), KeyError, "unknown metric"),
        (lambda r: r.count(TTFT), KeyError, "is a histogram"),
        (lambda r: r.count(DRAFTED, -1), ValueError, "only grow"),
        (lambda r: r.observe(TTFT, 1.0), ValueError, "length_bucket"),
        (lambda r: r.gauge("specdist_kv_blocks_used", 1, replica="x"), ValueError, "deployment"),
    ],
)
def test_recorder_refuses_what_the_catalogue_does_not_know(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call(Recorder("Router:a"))


def test_recorder_loses_nothing_between_threads() -> None:
    recorder, totals = Recorder("Target:a"), Totals()
    threads = [
        threading.Thread(target=lambda: [recorder.count(DRAFTED) for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    sequence = 0
    while any(thread.is_alive() for thread in threads) or sequence == 0:
        sequence += 1
        totals.add(recorder.take_delta(), sequence, 0.0)
    totals.add(recorder.take_delta(), sequence + 1, 0.0)
    assert totals.value(DRAFTED) == 8000


def test_catalogue_is_well_formed() -> None:
    assert len(CATALOG) == len(ROWS)
    for row in ROWS:
        assert row.name.startswith("specdist_") and not row.name.endswith("_total")
        assert row.help and "request_id" not in row.labels and "replica" not in row.labels
        assert bool(row.buckets) == (row.kind == "histogram")
        assert list(row.buckets) == sorted(row.buckets)
