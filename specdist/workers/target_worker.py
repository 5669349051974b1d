"""What one target replica does: every engine step decides tokens for all its sessions.

Plain Python around one engine thread. Each step takes, for every session, the freshest
candidates that still fit, verifies them all in one forward pass, commits, and reports
once per router. Plain decoding is the same step with an empty tree. Knows the engine and
the verification rules; knows no Ray, no text, and not who the clients are.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from specdist.config import AppConfig, SpeculationConfig
from specdist.engine.engine import Engine
from specdist.engine.scheduler import Plan, Scheduler
from specdist.engine.sequence import Rows, chain_rows
from specdist.errors import InvalidRequestError
from specdist.grammar import Grammars, TokenConstraint
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport, Verdict
from specdist.speculation.constraint import ConstraintError
from specdist.speculation.cost_model import CostModel
from specdist.speculation.rules.registry import get_rule
from specdist.workers.candidate_wait import wait_for_candidates
from specdist.workers.choosing import CandidateChoice
from specdist.workers.constraining import constraint_for
from specdist.workers.deciding import decide
from specdist.workers.observing import TargetMetrics, engine_gauges, plain_step_s
from specdist.workers.profiling import profile_engine
from specdist.workers.step_loop import EngineWorker
from specdist.workers.target_session import (
    EMPTY,
    FittedTree,
    TargetSession,
    new_target_session,
    shrink,
)

logger = logging.getLogger(__name__)


class TargetWorker(EngineWorker):
    """The sessions of one target replica, stepped together."""

    _sessions: dict[str, TargetSession]

    def __init__(
        self,
        config: AppConfig,
        target_id: str,
        on_report: Callable[[str, StepReport], None],
        recorder: Recorder,
        engine: Engine,
        cost: CostModel | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """``cost``: what the engine's steps cost, where that is known; None: measured now.

        ``grammars``: over the target's vocabulary; None: structured output is refused.
        """
        super().__init__("target-engine", config.target.num_threads)
        self.target_id = target_id
        self._config = config
        self._on_report = on_report
        self.engine = engine
        self._grammars = grammars
        self._scheduler = Scheduler(engine, engine.config)
        if cost is None:
            cost = profile_engine(engine)
        self._choice = CandidateChoice(config.speculation, cost)
        self._metrics = TargetMetrics(recorder)

    # -- called from other threads ------------------------------------------------------

    def prepare(self, request: SessionRequest) -> TokenConstraint | None:
        """The grammar that ``open`` will need: compiling may take long. Raises as ``open`` does."""
        return constraint_for(request, self._grammars)

    def open(
        self, request: SessionRequest, router_id: str, constraint: TokenConstraint | None = None
    ) -> None:
        """Take up a session; raises when it can never fit or its rule is not allowed.

        ``constraint``: what ``prepare`` gave for this request, where it was asked.
        """
        self._check(request)
        constraint = constraint or self.prepare(request)
        self._mailbox.post(lambda: self._open(request, router_id, constraint))

    def offer(self, offers: Offers) -> None:
        """Bring candidate trees; those that no longer fit are counted and dropped."""
        self._mailbox.post(lambda: self._take_offers(offers))

    def reconfigure(self, speculation: SpeculationConfig) -> None:
        """Apply new speculation settings from the next step on."""
        self._mailbox.post(lambda: self._choice.reconfigure(speculation))

    def stats(self) -> dict[str, float]:
        """Sessions and KV use, for health and autoscaling."""
        num_waiting = len(self._scheduler.waiting)
        gauges = engine_gauges(self.engine, len(self._sessions) - num_waiting, num_waiting)
        return {**gauges, "num_speculative_tokens": self._choice.mean_nodes}

    # -- on the engine thread -----------------------------------------------------------

    def step(self) -> bool:
        """One engine step; False when there is nothing to do."""
        self._take_messages()
        if not self._sessions:
            self.engine.check_integrity()
            return False
        sessions = self._sessions.values()
        waited_s = wait_for_candidates(sessions, self._choice, self._mailbox, self._take_messages)
        fitted = self._fitted_trees()
        plan = self._scheduler.plan({i: len(f.tree) for i, f in fitted.items()})
        verdicts = self._exhausted(plan)
        began = time.monotonic()
        verdicts += self._run(plan, fitted)
        step_s = time.monotonic() - began
        if plan.num_rows:
            self._choice.cost.observe(plan.num_rows, step_s)
        self._report(verdicts, step_s)
        self._metrics.observe_step(step_s, verdicts, len(plan.preempted))
        plain_s = plain_step_s(self._choice.cost, step_s, plan, verdicts)
        self._metrics.observe_pace(waited_s, plain_s)
        return bool(verdicts or plan.prefills or plan.decodes)

    def _check(self, request: SessionRequest) -> None:
        rule = get_rule(request.rule)
        if not rule.lossless and not self._config.rules.allow_lossy:
            raise InvalidRequestError(
                f"speculation.rule {request.rule!r} is lossy and this deployment does not allow it",
                param="speculation.rule",
            )
        self.engine.check_prompt(request.committed)

    def _open(
        self, request: SessionRequest, router_id: str, constraint: TokenConstraint | None
    ) -> None:
        if request.session_id in self._sessions:
            self._close([request.session_id])
        sequence = self.engine.open(request.session_id, request.committed)
        self._scheduler.add(sequence)
        self._sessions[request.session_id] = new_target_session(
            request, router_id, sequence, self.engine, self._config.rules, constraint
        )

    def _take_offers(self, offers: Offers) -> None:
        enabled = self._choice.settings.mode != "off"
        for tree in offers.trees:
            session = self._sessions.get(tree.session_id)
            if session is not None and session.request.speculate and enabled:
                session.offer(tree)

    def _close(self, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            if self._sessions.pop(session_id, None) is not None:
                self._scheduler.remove(session_id)
                self.engine.close(session_id)

    def _fitted_trees(self) -> dict[str, FittedTree]:
        """The candidates worth verifying, for every session that decodes."""
        limit = self.engine.max_model_len
        decoding = {i: s for i, s in self._sessions.items() if not s.is_prefilling}
        num_waiting = sum(s.sequence.num_uncomputed for s in self._sessions.values())
        num_prefill_rows = min(num_waiting - len(decoding), self.engine.config.max_prefill_chunk)
        fitted = {i: s.take_candidates(limit) for i, s in decoding.items()}
        return self._choice.choose(fitted, decoding, num_prefill_rows)

    def _exhausted(self, plan: Plan) -> list[Verdict]:
        """Sequences that alone need more blocks than there are end with what they have."""
        verdicts = []
        for sequence in plan.exhausted:
            session = self._sessions[sequence.session_id]
            logger.warning("%s: ended, the KV pool is too small for it", sequence.session_id)
            verdicts.append(session.verdict((), finish_reason="length"))
        return verdicts

    def _run(self, plan: Plan, fitted: Mapping[str, FittedTree]) -> list[Verdict]:
        work, items = self._items(plan, fitted)
        if not items:
            return []
        try:
            logits = self.engine.forward(items)
        except Exception as error:  # the boundary: one bad step fails its batch, never the replica
            logger.exception("an engine step failed")
            return [
                s.failure(f"the target failed in this step: {error}", is_retryable=True)
                for s, _ in work
            ]
        verdicts = []
        for (session, trees), item, rows in zip(work, items, logits, strict=True):
            verdict = self._decide(session, trees, item, rows)
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    def _items(
        self, plan: Plan, fitted: Mapping[str, FittedTree]
    ) -> tuple[list[tuple[TargetSession, FittedTree]], list[Rows]]:
        work: list[tuple[TargetSession, FittedTree]] = []
        items: list[Rows] = []
        for sequence, num_tokens in plan.prefills:
            begin = sequence.num_computed
            tokens = sequence.tokens[begin : begin + num_tokens]
            ends = begin + num_tokens == len(sequence.tokens)
            items.append(chain_rows(sequence, tokens, [num_tokens - 1] if ends else []))
            work.append((self._sessions[sequence.session_id], EMPTY))
        for sequence, granted in plan.decodes:
            session = self._sessions[sequence.session_id]
            trees = shrink(fitted.get(sequence.session_id, EMPTY), granted, session.rule)
            tokens = [sequence.tokens[-1], *trees.tree.tokens]
            parents = [-1, *(p + 1 for p in trees.tree.parents)]
            items.append(Rows(sequence, tokens, parents, list(range(len(tokens)))))
            work.append((session, trees))
        return work, items

    def _decide(
        self, session: TargetSession, trees: FittedTree, item: Rows, logits: Tensor
    ) -> Verdict | None:
        num_context = len(item.tokens) - len(trees.tree)  # pending rows, the root last
        path = list(range(num_context))
        if not len(logits):
            self.engine.settle(session.sequence, path)
            return None
        try:
            verdict, accepted, num_missing = decide(session, trees, logits, self.engine)
        except FloatingPointError as error:
            return session.failure(str(error))
        except ConstraintError as error:
            return session.failure(str(error), is_refusal=True)
        self._metrics.count_missing_rows(num_missing)
        session.commit(verdict.tokens)
        self._choice.observe(session, verdict.num_draft_tokens, verdict.num_accepted)
        self.engine.settle(session.sequence, path + [num_context + i for i in accepted])
        return verdict

    def _report(self, verdicts: Sequence[Verdict], step_s: float) -> None:
        by_router: dict[str, list[Verdict]] = defaultdict(list)
        for verdict in verdicts:
            by_router[self._sessions[verdict.session_id].router_id].append(verdict)
        self._close([v.session_id for v in verdicts if v.finish_reason is not None])
        for router_id, mine in by_router.items():
            self._on_report(router_id, StepReport(self.target_id, tuple(mine), step_s))
