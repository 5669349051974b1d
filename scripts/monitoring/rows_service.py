"""The dashboard's rows about the service: engines, memory, replicas and load, trouble.

Called by ``panels.build_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator

from scripts.monitoring.panels import Panel, Row, panel
from scripts.monitoring.queries import gauge, mean_gauge, quantile, rate, ray, recorded, seconds_in

DEPLOYMENT = "{{deployment}}"
SHARE = "percentunit"


def build() -> tuple[Row, ...]:
    """In the order of the dashboard."""
    return (
        Row("Engines", tuple(_engines())),
        Row("Memory", tuple(_memory())),
        Row("Load", tuple(_load())),
        Row("Replicas", tuple(_replicas())),
        Row("What goes wrong", tuple(_trouble())),
    )


def _engines() -> Iterator[Panel]:
    step = "specdist_engine_step_seconds"
    yield panel(
        "Time of one step",
        "s",
        (quantile(0.5, step, "deployment"), f"p50 {DEPLOYMENT}"),
        (quantile(0.95, step, "deployment"), f"p95 {DEPLOYMENT}"),
    )
    yield panel(
        "Steps per second", "short", (rate("specdist_engine_steps", "deployment"), DEPLOYMENT)
    )
    yield panel(
        "Busy time of a replica",
        SHARE,
        (
            f"{seconds_in(step, 'deployment')} / {gauge('specdist_replicas', 'deployment')}",
            DEPLOYMENT,
        ),
        text="Near 100 % long before a replica is full: judge the load by its sessions.",
    )
    yield panel(
        "Target waits for candidates",
        SHARE,
        (rate("specdist_candidate_wait_seconds"), "of the time, summed over replicas"),
    )


def _memory() -> Iterator[Panel]:
    yield panel(
        "KV cache in use",
        SHARE,
        (mean_gauge("specdist_kv_cache_usage_ratio", "deployment"), DEPLOYMENT),
        limit=0.9,
    )
    yield panel(
        "KV blocks in use", "short", (gauge("specdist_kv_blocks_used", "deployment"), DEPLOYMENT)
    )
    yield panel(
        "Size of the KV caches",
        "bytes",
        (gauge("specdist_kv_cache_bytes", "deployment"), DEPLOYMENT),
    )
    yield panel(
        "Memory of the replicas",
        "bytes",
        (gauge("specdist_memory_bytes", "deployment", "device"), f"{DEPLOYMENT} {{{{device}}}}"),
    )
    yield panel(
        "GPU memory (Ray)",
        "bytes",
        (ray("ray_node_gram_used", "ray_io_group") + " * 1024 * 1024", "{{ray_io_group}}"),
        may_be_empty=True,
    )
    yield panel("Preemptions per second", "short", (rate("specdist_preemptions"), "preemptions"))
    cached = f"{rate('specdist_prompt_tokens_cached')} / {rate('specdist_prompt_tokens')}"
    yield panel("Prompt tokens out of the prefix cache", SHARE, (cached, "of all prompt tokens"))


def _load() -> Iterator[Panel]:
    yield panel(
        "Requests running and waiting",
        "short",
        (gauge("specdist_num_requests_running", "deployment"), f"{DEPLOYMENT} running"),
        (gauge("specdist_num_requests_waiting", "deployment"), f"{DEPLOYMENT} waiting"),
    )
    yield panel(
        "Sessions at the replicas, queue before them (Serve)",
        "short",
        (ray("ray_serve_num_ongoing_requests_at_replicas", "deployment"), f"{DEPLOYMENT} ongoing"),
        (ray("ray_serve_deployment_queued_queries", "deployment"), f"{DEPLOYMENT} queued"),
        may_be_empty=True,
    )
    yield panel(
        "GPU use (Ray)",
        "percent",
        (ray("ray_node_gpus_utilization", "ray_io_group", how="avg"), "{{ray_io_group}}"),
        may_be_empty=True,
    )


def _replicas() -> Iterator[Panel]:
    wanted = ray("ray_serve_autoscaling_target_replicas", "deployment", how="max")
    asked = ray("ray_serve_autoscaling_desired_replicas", "deployment", how="max")
    yield panel(
        "Replicas wanted and running (Serve)",
        "short",
        (wanted, f"{DEPLOYMENT} wanted"),
        (ray("ray_serve_deployment_replica_healthy", "deployment"), f"{DEPLOYMENT} running"),
        may_be_empty=True,
    )
    yield panel(
        "Replicas that the policy asks for (Serve)",
        "short",
        (asked, DEPLOYMENT),
        text="Before bounds and delays.",
        may_be_empty=True,
    )
    yield panel(
        "Replicas that report", "short", (gauge("specdist_replicas", "deployment"), DEPLOYMENT)
    )
    yield panel(
        "Pods (Ray's autoscaler)",
        "short",
        (ray("autoscaler_active_nodes", "NodeType"), "{{NodeType}} running"),
        (ray("autoscaler_pending_nodes", "NodeType"), "{{NodeType}} pending"),
        may_be_empty=True,
    )


def _trouble() -> Iterator[Panel]:
    yield panel(
        "Requests by outcome", "short", (rate("specdist_requests", "outcome"), "{{outcome}}")
    )
    yield panel(
        "Requests that end in errors",
        SHARE,
        (recorded("specdist:request_error_share:5m"), "of all requests"),
        limit=0.02,
    )
    yield panel(
        "Draft sessions by event", "short", (rate("specdist_draft_sessions", "event"), "{{event}}")
    )
    yield panel(
        "Fallback to plain decoding",
        SHARE,
        (recorded("specdist:fallback_rate:5m"), "of the attempts to speculate"),
        limit=0.05,
    )
    yield panel(
        "What kept drafts from drafting",
        "short",
        (rate("specdist_draft_trouble", "reason"), "{{reason}}"),
        may_be_empty=True,
    )
    yield panel(
        "Lost and late",
        "short",
        (rate("specdist_target_sessions_lost"), "sessions whose target died"),
        (rate("specdist_late_verdicts"), "late verdicts"),
        (rate("specdist_spec_decode_num_missing_draft_rows"), "nodes without their draft law"),
    )
