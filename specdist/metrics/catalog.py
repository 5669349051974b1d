"""Every metric of the application: one row each, the only place where names are made.

``specdist.metrics.recorder`` refuses what is not here and renders what is. Names follow
vLLM's with the prefix ``specdist_``; labels are bounded by construction: never a request,
never a replica on a histogram. Counters are stored without the suffix ``_total``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

FIRST_TOKEN_BUCKETS: Final = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
PER_TOKEN_BUCKETS: Final = (
    *(0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
)
REQUEST_BUCKETS: Final = (
    *(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0),
    *(15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
)
STEP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
CHUNK_BUCKETS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)


class Metric(NamedTuple):
    """One row: how a metric is named, explained, labelled and who records it."""

    name: str
    kind: Kind
    help: str
    recorded_by: str  # the part that calls the recorder: target, draft, router, each
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _spec(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specdist_spec_decode_num_{name}", "counter", text, "target", labels)


def _request(name: str, text: str) -> Metric:
    text = f"{text}, by requests that are over"
    return Metric(f"specdist_request_{name}", "counter", text, "router", ("length_bucket",))


def _latency(name: str, text: str, buckets: tuple[float, ...], label: bool = True) -> Metric:
    labels = ("length_bucket",) if label else ()
    return Metric(f"specdist_{name}_seconds", "histogram", text, "router", labels, buckets)


ROWS: Final[tuple[Metric, ...]] = (
    _spec("drafts", "Verified drafts: steps of a request that verified a candidate"),
    _spec("draft_tokens", "Candidates verified, root excluded"),
    _spec("accepted_tokens", "Candidates accepted, next token excluded"),
    _spec("accepted_tokens_per_pos", "Candidates accepted, by depth in the path", "position"),
    _spec("stale_drafts", "Trees thrown away before verification; in no ratio"),
    _spec("steps", "Verification steps of requests, with and without candidates"),
    _spec("missing_draft_rows", "Inner nodes whose draft law was missing: taken as rejected"),
    Metric(
        "specdist_plain_step_seconds",
        "counter",
        "Engine time that plain decoding would need for the same tokens, by the cost model",
        "target",
    ),
    Metric(
        "specdist_candidate_wait_seconds",
        "counter",
        "Time in which engine steps waited for candidates",
        "target",
    ),
    Metric("specdist_generation_tokens", "counter", "Tokens committed for answers", "target"),
    Metric("specdist_prompt_tokens", "counter", "Prompt tokens of accepted requests", "router"),
    Metric(
        "specdist_prompt_tokens_cached", "counter", "Prompt tokens in the prefix cache", "router"
    ),
    Metric("specdist_preemptions", "counter", "Sequences that gave their memory back", "target"),
    Metric("specdist_draft_tokens_proposed", "counter", "Nodes put into offered trees", "draft"),
    Metric(
        "specdist_draft_trouble",
        "counter",
        "Model drafting kept off a session: starved (no KV blocks), nan, too_long, grammar, failed",
        "draft",
        ("reason",),
    ),
    Metric("specdist_engine_steps", "counter", "Forward passes", "each", ("deployment",)),
    Metric(
        "specdist_engine_step_seconds",
        "histogram",
        "Time of one forward pass and what belongs to it",
        "each",
        ("deployment",),
        STEP_BUCKETS,
    ),
    Metric(
        "specdist_requests",
        "counter",
        "Requests by how they ended: stop, length, closed (stop string), cancelled, error status",
        "router",
        ("outcome",),
    ),
    Metric(
        "specdist_draft_sessions",
        "counter",
        "Draft sessions by event: attached, lost, failed (not opened now), refused (never)",
        "router",
        ("event",),
    ),
    Metric("specdist_target_sessions_lost", "counter", "Sessions whose target died", "router"),
    Metric("specdist_late_verdicts", "counter", "Verdicts that came late or twice", "router"),
    _request("drafts", "Verified drafts"),
    _request("draft_tokens", "Candidates verified"),
    _request("accepted_tokens", "Candidates accepted"),
    _request("generation_tokens", "Tokens committed"),
    _latency("time_to_first_token", "From arrival to the first token", FIRST_TOKEN_BUCKETS),
    _latency("inter_token_latency", "Gap between chunks of one answer", PER_TOKEN_BUCKETS),
    _latency("time_per_output_token", "(E2E - TTFT) / (output tokens - 1)", PER_TOKEN_BUCKETS),
    _latency("e2e_request_latency", "From arrival to the last token", REQUEST_BUCKETS),
    _latency(
        "request_queue_time", "From arrival until a target took it", REQUEST_BUCKETS, label=False
    ),
    Metric(
        "specdist_tokens_per_chunk",
        "histogram",
        "Tokens that one chunk carries",
        "router",
        (),
        CHUNK_BUCKETS,
    ),
    Metric(
        "specdist_num_requests_running",
        "gauge",
        "Sessions being worked on",
        "each",
        ("deployment",),
    ),
    Metric(
        "specdist_num_requests_waiting",
        "gauge",
        "Sessions waiting for memory or a step",
        "each",
        ("deployment",),
    ),
    Metric(
        "specdist_kv_cache_usage_ratio",
        "gauge",
        "Share of the KV blocks in use (mean)",
        "each",
        ("deployment",),
    ),
    Metric("specdist_kv_blocks_used", "gauge", "KV blocks in use", "each", ("deployment",)),
    Metric("specdist_kv_cache_bytes", "gauge", "Size of the KV cache", "each", ("deployment",)),
    Metric(
        "specdist_memory_bytes",
        "gauge",
        "Memory in use per kind of device",
        "each",
        ("deployment", "device"),
    ),
    Metric(
        "specdist_num_speculative_tokens",
        "gauge",
        "Candidates per request and step that the controller chooses now (mean)",
        "target",
    ),
    Metric("specdist_replicas", "gauge", "Replicas that report", "each", ("deployment",)),
)

MEAN_GAUGES: Final = frozenset(
    {"specdist_kv_cache_usage_ratio", "specdist_num_speculative_tokens"}
)  # averaged over replicas; every other gauge is summed

CATALOG: Final[dict[str, Metric]] = {row.name: row for row in ROWS}


def get_metric(name: str, kind: Kind) -> Metric:
    """The row of a metric; raises KeyError naming the known ones."""
    metric = CATALOG.get(name)
    if metric is None:
        raise KeyError(f"unknown metric {name!r}; known: {', '.join(sorted(CATALOG))}")
    if metric.kind != kind:
        raise KeyError(f"metric {name!r} is a {metric.kind}, not a {kind}")
    return metric
