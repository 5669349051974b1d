"""GET /metrics of the whole application, and the counts in the answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specdist.bench.served import ServedApp
from specdist.client import Answer, Client
from tests.e2e.rig import PATIENCE_S, REFERENCES, Series, post, scrape, total, wait_for

COUNTERS = (
    "specdist_spec_decode_num_drafts_total",
    "specdist_spec_decode_num_draft_tokens_total",
    "specdist_spec_decode_num_accepted_tokens_total",
    "specdist_spec_decode_num_steps_total",
    "specdist_plain_step_seconds_total",
    "specdist_candidate_wait_seconds_total",
    "specdist_request_drafts_total",
    "specdist_request_draft_tokens_total",
    "specdist_request_accepted_tokens_total",
    "specdist_request_generation_tokens_total",
    "specdist_generation_tokens_total",
    "specdist_prompt_tokens_total",
    "specdist_draft_tokens_proposed_total",
    "specdist_requests_total",
)
HISTOGRAMS = (
    "specdist_time_to_first_token_seconds",
    "specdist_inter_token_latency_seconds",
    "specdist_time_per_output_token_seconds",
    "specdist_e2e_request_latency_seconds",
    "specdist_request_queue_time_seconds",
)
GAUGES = (
    "specdist_num_requests_running",
    "specdist_num_requests_waiting",
    "specdist_kv_cache_usage_ratio",
    "specdist_kv_blocks_used",
    "specdist_memory_bytes",
)
DRAFTS = "specdist_spec_decode_num_drafts_total"
DRAFTED = "specdist_spec_decode_num_draft_tokens_total"
ACCEPTED = "specdist_spec_decode_num_accepted_tokens_total"
PER_POSITION = "specdist_spec_decode_num_accepted_tokens_per_pos_total"


@pytest.fixture(scope="module")
def answers(app: ServedApp, client: Client) -> list[Answer]:
    """Requests of which at least one token was drafted and accepted."""
    given: list[Answer] = []

    def accepted() -> int:
        for reference in (REFERENCES["P-OHM"], REFERENCES["P-COUNT"], REFERENCES["P-NUMS"]):
            limit = reference.max_tokens
            prompt = reference.client_prompt
            given.append(client.generate(prompt, max_tokens=limit, temperature=0))
        return sum(a.speculation.num_accepted_tokens for a in given)

    wait_for("an accepted candidate", accepted, PATIENCE_S)
    return given


@pytest.fixture(scope="module")
def samples(app: ServedApp, answers: list[Answer]) -> Sequence[Series]:
    """What /metrics says after these requests."""
    return scrape(app)


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_count(samples: Sequence[Series], name: str) -> None:
    """B111: whichever process counts."""
    assert total(samples, name) > 0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_latencies_are_observed(samples: Sequence[Series], name: str) -> None:
    assert total(samples, f"{name}_count") > 0
    assert total(samples, f"{name}_sum") > 0
    assert total(samples, f"{name}_bucket", le="+Inf") == total(samples, f"{name}_count")


@pytest.mark.parametrize("name", GAUGES)
@pytest.mark.parametrize("deployment", ["Draft", "Target"])
def test_gauges_of_each_deployment(samples: Sequence[Series], name: str, deployment: str) -> None:
    assert total(samples, name, deployment=deployment) >= 0


def test_gauge_of_chosen_candidates(samples: Sequence[Series]) -> None:
    """B111: how many candidates the controller chooses now."""
    assert total(samples, "specdist_num_speculative_tokens") > 0


def test_engine_steps_of_each_deployment(samples: Sequence[Series]) -> None:
    for deployment in ("Draft", "Target"):
        assert total(samples, "specdist_engine_steps_total", deployment=deployment) > 0
        assert total(samples, "specdist_replicas", deployment=deployment) == 1


def test_blocks_are_used_during_an_answer(app: ServedApp, client: Client) -> None:
    """B111: for each deployment."""

    def both_use_blocks() -> bool:
        now = scrape(app)
        used = (total(now, "specdist_kv_blocks_used", deployment=d) for d in ("Draft", "Target"))
        return all(used)

    stream = client.stream("Once upon a time", max_tokens=2000, ignore_eos=True)
    next(stream)
    wait_for("blocks in use", both_use_blocks, PATIENCE_S)
    stream.close()


def test_never_more_accepted_than_drafted(samples: Sequence[Series], answers: list[Answer]) -> None:
    """B107: the next token is no accepted one."""
    assert 0 < total(samples, ACCEPTED) <= total(samples, DRAFTED)
    assert total(samples, DRAFTS) <= total(samples, DRAFTED)
    assert total(samples, PER_POSITION) == total(samples, ACCEPTED)
    assert total(samples, ACCEPTED) < total(samples, "specdist_generation_tokens_total")
    for answer in answers:
        stats = answer.speculation
        assert 0 <= stats.num_accepted_tokens <= stats.num_draft_tokens
        assert 0 <= stats.draft_acceptance_rate <= 1
        assert sum(stats.acceptance_histogram) == stats.num_spec_steps <= stats.num_steps
        weighted = sum(i * n for i, n in enumerate(stats.acceptance_histogram))
        assert weighted == stats.num_accepted_tokens


def test_usage_details_add_up(answers: list[Answer]) -> None:
    """B110: every part within the whole; accepted plus one token per step is the answer."""
    for answer in answers:
        usage, stats = answer.usage, answer.speculation
        assert usage.completion_tokens == len(answer.token_ids)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.accepted_prediction_tokens == stats.num_accepted_tokens
        bonus = usage.completion_tokens - usage.accepted_prediction_tokens
        assert bonus in (stats.num_steps, stats.num_steps - 1)  # the last step may end early
        assert 0 <= usage.rejected_prediction_tokens <= usage.completion_tokens
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens


def test_usage_details_through_http(app: ServedApp) -> None:
    """B110, as OpenAI's clients see it."""
    reference = REFERENCES["P-COUNT"]
    body = {"messages": reference.client_prompt, "max_tokens": 40, "temperature": 0}
    usage = post(app, "/v1/chat/completions", body).json()["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == len(reference.token_ids)
    assert all(0 <= v <= usage["completion_tokens"] for v in details.values())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
