"""Which of the offered candidates a target step verifies, and what waiting for more is worth.

The bridge between the target's sessions and ``speculation.controller``: buckets, scores
and limits in, trimmed trees out. Trees of rules that need the draft's draws are taken whole
or not at all. Owned by the target worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from specdist.config import SpeculationConfig
from specdist.speculation.controller import Candidates, Controller, length_bucket
from specdist.speculation.cost_model import CostModel
from specdist.workers.target_session import EMPTY, FittedTree, TargetSession, select

SMOOTHING = 0.1


class CandidateChoice:
    """One controller for all sessions of a replica."""

    def __init__(self, settings: SpeculationConfig, cost: CostModel) -> None:
        self.cost = cost
        self.settings = settings
        self._controller = _controller(settings, cost)
        self._expected: dict[str, float] = {}
        self.mean_nodes = 0.0  # candidates per session and step of late

    def reconfigure(self, settings: SpeculationConfig) -> None:
        """New settings from the next step on; what steps cost stays known."""
        self.settings = settings
        self._controller = _controller(settings, self.cost)

    def choose(
        self,
        fitted: Mapping[str, FittedTree],
        sessions: Mapping[str, TargetSession],
        num_prefill_rows: int,
    ) -> dict[str, FittedTree]:
        """The trees to verify in a step in which all these sessions decode."""
        free = {i: t for i, t in fitted.items() if not sessions[i].rule.needs_draft_probs}
        whole = {i: t for i, t in fitted.items() if i not in free}
        if self.settings.mode == "off":
            return dict.fromkeys(fitted, EMPTY)
        other_rows = num_prefill_rows + sum(1 + len(t.tree) for t in whole.values())
        choice = self._controller.choose(
            [_candidates(tree, _bucket(sessions[i])) for i, tree in free.items()], other_rows
        )
        chosen = dict(whole)
        for (session_id, tree), nodes, expected in zip(
            free.items(), choice.nodes, choice.expected, strict=True
        ):
            self._expected[session_id] = expected
            keeps_all = len(nodes) == len(tree.tree)
            chosen[session_id] = tree if keeps_all else select(tree, list(nodes))
        if chosen:
            mean = sum(len(tree.tree) for tree in chosen.values()) / len(chosen)
            self.mean_nodes += SMOOTHING * (mean - self.mean_nodes)
        return chosen

    def observe(self, session: TargetSession, num_verified: int, num_accepted: int) -> None:
        """What became of the candidates that were chosen last for this session."""
        expected = self._expected.pop(session.request.session_id, None)
        if expected is not None and num_verified:
            self._controller.observe(_bucket(session), expected, num_accepted)

    def is_active(self, session: TargetSession) -> bool:
        """Whether candidates for this session may be used now."""
        return self._controller.is_active(_bucket(session))

    def wait_budget_s(self, missing: Collection[TargetSession], num_sessions: int) -> float:
        """How long the step may wait for the missing candidates."""
        longest = self.settings.max_wait_s
        if not self.settings.draft_ahead or not self.cost.is_measured:
            return longest  # the synchronous loop: draft, then verify, then draft
        gain = sum(s.expected_accepted for s in missing)
        num_nodes = self.settings.num_speculative_tokens * len(missing)
        return self._controller.wait_budget_s(gain, num_sessions, num_nodes, longest)


def _controller(settings: SpeculationConfig, cost: CostModel) -> Controller:
    # The draft has kept to depth and node limits already; "fixed" is a chain by then.
    mode = "tree" if settings.mode == "fixed" else settings.mode
    nodes = max(settings.max_tree_nodes, settings.num_speculative_tokens)
    return Controller(cost, mode, nodes, settings.num_speculative_tokens)


def _bucket(session: TargetSession) -> str:
    return length_bucket(session.request.num_prompt_tokens, session.max_tokens)


def _candidates(fitted: FittedTree, bucket: str) -> Candidates:
    scores = fitted.scores or (0.0,) * len(fitted.tree)
    return Candidates(scores, fitted.tree.parents, bucket)
