"""The dashboard's rows about speculation: does it pay, what do drafts hit, what clients feel.

Called by ``panels.build_rows``.
"""

from __future__ import annotations

from collections.abc import Iterator

from scripts.monitoring.panels import Panel, Row, panel
from scripts.monitoring.queries import mean, mean_gauge, quantile, rate, recorded

QUANTILES = ("0.5", "0.95", "0.99")
SHARE = "percentunit"


def build() -> tuple[Row, ...]:
    """In the order of the dashboard."""
    return (
        Row("Does speculation pay?", tuple(_paying())),
        Row("What drafts hit", tuple(_hits())),
        Row("By prompt length", tuple(_lengths())),
        Row("What clients feel", tuple(_latencies())),
    )


def _paying() -> Iterator[Panel]:
    yield panel(
        "Speed-up against plain decoding",
        "short",
        (recorded("specdist:speed_up:5m"), "speed-up"),
        text="Engine time that plain decoding would take for the same tokens, by the target's "
        "cost model, over the time that was spent, waits included.",
        limit=1.0,
    )
    yield panel(
        "Draft token share",
        SHARE,
        (recorded("specdist:draft_token_share:5m"), "accepted / generated"),
        limit=0.5,
    )
    yield panel(
        "Tokens per second, each side",
        "short",
        (rate("specdist_generation_tokens"), "target: committed"),
        (rate("specdist_spec_decode_num_accepted_tokens"), "target: accepted"),
        (rate("specdist_spec_decode_num_draft_tokens"), "target: verified"),
        (rate("specdist_draft_tokens_proposed"), "draft: proposed"),
        (rate("specdist_prompt_tokens"), "prompts"),
    )
    yield panel(
        "Steps that verified candidates",
        SHARE,
        (recorded("specdist:speculating_step_share:5m"), "of all steps"),
        text="The other steps were plain decoding: no candidates, or none worth it.",
    )


def _hits() -> Iterator[Panel]:
    yield panel(
        "Acceptance by position",
        SHARE,
        (recorded("specdist:acceptance_by_position:5m"), "token {{position}}"),
        text="Drafts that accepted their token at this depth, of all verified drafts.",
    )
    yield panel(
        "Draft hit rate",
        SHARE,
        (recorded("specdist:draft_hit_ratio:5m"), "drafts: first token accepted"),
        (recorded("specdist:draft_acceptance_rate:5m"), "candidates: accepted"),
        limit=0.5,
    )
    yield panel(
        "Mean acceptance length",
        "short",
        (recorded("specdist:mean_acceptance_length:5m"), "tokens per verified draft"),
    )
    yield panel(
        "Tree size",
        "short",
        (recorded("specdist:tree_size:5m"), "candidates per verified draft"),
        (mean_gauge("specdist_num_speculative_tokens"), "chosen now"),
    )
    yield panel(
        "Stale trees",
        SHARE,
        (recorded("specdist:stale_share:5m"), "of all trees"),
        limit=0.25,
    )


def _lengths() -> Iterator[Panel]:
    for title, name, unit in (
        ("Acceptance by prompt length", "draft_acceptance_rate_by_length", SHARE),
        ("Mean acceptance length by prompt length", "mean_acceptance_length_by_length", "short"),
        ("Draft token share by prompt length", "draft_token_share_by_length", SHARE),
    ):
        expr = recorded(f"specdist:{name}:5m")
        text = "Counted when a request is over."
        yield panel(title, unit, (expr, "{{length_bucket}}"), text=text)


def _latencies() -> Iterator[Panel]:
    for title, name in (
        ("Time to first token", "time_to_first_token"),
        ("Time per output token", "time_per_output_token"),
        ("Gap between chunks", "inter_token_latency"),
        ("End to end", "e2e_request_latency"),
    ):
        series = f"specdist:{name}_seconds:quantile5m"
        queries = [
            (recorded(series, quantile=q), f"p{float(q) * 100:g} {{{{length_bucket}}}}")
            for q in QUANTILES
        ]
        yield panel(title, "s", *queries)
    yield panel(
        "Queue wait",
        "s",
        (recorded("specdist:queue_wait_seconds:mean5m"), "mean, router and target"),
        (recorded("specdist:queue_wait_seconds:slo"), "objective"),
        (quantile(0.95, "specdist_request_queue_time_seconds"), "p95, router"),
    )
    yield panel(
        "Tokens per chunk",
        "short",
        (mean("specdist_tokens_per_chunk"), "mean"),
        (quantile(0.95, "specdist_tokens_per_chunk"), "p95"),
    )
