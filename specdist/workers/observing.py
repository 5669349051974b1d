"""What the workers count: verdicts and steps into the recorder, engine use as gauges.

Counts only; ratios are computed where they are read. Called by both workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdist.engine.engine import Engine
from specdist.engine.scheduler import Plan
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import CandidateTree
from specdist.protocol.verdict import Verdict
from specdist.speculation.cost_model import CostModel


def engine_gauges(engine: Engine | None, num_running: int, num_waiting: int) -> dict[str, float]:
    """Present values under the names of the metric catalogue."""
    gauges: dict[str, float] = {
        "num_requests_running": num_running,
        "num_requests_waiting": num_waiting,
    }
    if engine is not None:
        usage = engine.usage()
        gauges["kv_cache_usage_ratio"] = usage.used_ratio
        gauges["kv_blocks_used"] = usage.num_held
        gauges["kv_cache_bytes"] = usage.num_bytes
    return gauges


def plain_step_s(cost: CostModel, step_s: float, plan: Plan, verdicts: Sequence[Verdict]) -> float:
    """What plain decoding would have needed for the tokens that this step decided.

    The step without its candidates, then as many plain steps as the accepted tokens fill,
    both by the cost model and as a share of what it says of the whole step: whatever makes
    the step slow today (long contexts, a busy device) would have made plain decoding slow.
    """
    num_candidates = sum(verdict.num_draft_tokens for verdict in verdicts)
    if not num_candidates:
        return step_s
    num_decodes = len(plan.decodes)
    num_more_steps = sum(verdict.num_accepted for verdict in verdicts) / num_decodes
    plain_s = cost.step_s(plan.num_rows - num_candidates)
    plain_s += num_more_steps * cost.step_s(num_decodes)
    return step_s * plain_s / cost.step_s(plan.num_rows)


class TargetMetrics:
    """Counters of a target replica."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def observe_step(self, step_s: float, verdicts: Sequence[Verdict], num_preempted: int) -> None:
        """One engine step and what it decided."""
        count = self._recorder.count
        count("specdist_engine_steps", 1, deployment="Target")
        self._recorder.observe("specdist_engine_step_seconds", step_s, deployment="Target")
        count("specdist_preemptions", num_preempted)
        for verdict in verdicts:
            count("specdist_spec_decode_num_steps")
            count("specdist_generation_tokens", len(verdict.tokens))
            count("specdist_spec_decode_num_stale_drafts", verdict.num_stale_trees)
            if not verdict.num_draft_tokens:
                continue
            count("specdist_spec_decode_num_drafts")
            count("specdist_spec_decode_num_draft_tokens", verdict.num_draft_tokens)
            count("specdist_spec_decode_num_accepted_tokens", verdict.num_accepted)
            for position in range(verdict.num_accepted):
                count("specdist_spec_decode_num_accepted_tokens_per_pos", 1, position=position)

    def observe_pace(self, waited_s: float, plain_s: float) -> None:
        """What the step waited for candidates, and what plain decoding would have needed."""
        self._recorder.count("specdist_candidate_wait_seconds", waited_s)
        self._recorder.count("specdist_plain_step_seconds", plain_s)

    def count_missing_rows(self, number: int) -> None:
        """Inner nodes whose draft law was missing."""
        self._recorder.count("specdist_spec_decode_num_missing_draft_rows", number)


class DraftMetrics:
    """Counters of a draft replica."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def observe_step(self, step_s: float) -> None:
        """One forward pass of the draft."""
        self._recorder.count("specdist_engine_steps", 1, deployment="Draft")
        self._recorder.observe("specdist_engine_step_seconds", step_s, deployment="Draft")

    def count_offers(self, trees: Sequence[CandidateTree]) -> None:
        """Trees that were sent."""
        self._recorder.count(
            "specdist_draft_tokens_proposed", sum(len(tree.tokens) for tree in trees)
        )

    def count_trouble(self, reason: str) -> None:
        """Something kept the draft from drafting: starved (no KV blocks), nan, ..."""
        self._recorder.count("specdist_draft_trouble", 1, reason=reason)
