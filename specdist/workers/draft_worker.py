"""What one draft replica does: keeps a growing candidate tree for each session and offers it.

Plain Python around one engine thread. A verdict re-roots the session's tree; what survives
is offered at once when it is good enough, otherwise the tree is grown first; while the
target verifies, the tree goes on growing (draft-ahead). All sessions share each forward
pass, and all trees of a step that go to one target travel in one message. Knows no Ray and
never decides a token.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from specdist.config import AppConfig, SpeculationConfig
from specdist.drafters.base import DraftSession, GrowthLimits
from specdist.drafters.draft_model import DraftModel, Work
from specdist.drafters.prompt_lookup import PromptLookup
from specdist.engine.engine import Engine
from specdist.grammar import Grammars, TokenConstraint
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport, Verdict
from specdist.speculation.noise import Noise
from specdist.speculation.rules.registry import get_rule
from specdist.speculation.sampling import SamplingState
from specdist.workers.constraining import constraint_for
from specdist.workers.observing import DraftMetrics, engine_gauges
from specdist.workers.offering import growth, is_ready, make_offer, note_use, rest_notice
from specdist.workers.step_loop import EngineWorker

logger = logging.getLogger(__name__)
IDLE_AFTER_S = 5.0  # a session without verdicts for so long may lose its KV to others


class DraftWorker(EngineWorker):
    """The sessions of one draft replica, grown together."""

    _sessions: dict[str, DraftSession]

    def __init__(
        self,
        config: AppConfig,
        draft_id: str,
        on_offers: Callable[[str, str, Offers], None],
        recorder: Recorder,
        engine: Engine | None,
        grammars: Grammars | None = None,
    ) -> None:
        """``engine`` is None when no model drafts (``drafters: [ngram]``).

        ``grammars``: over the target's vocabulary; None: sessions with structure are refused.
        """
        super().__init__("draft-engine", config.draft.num_threads)
        self.draft_id = draft_id
        self._settings = config.speculation
        self._on_offers = on_offers
        self.engine = engine
        self._grammars = grammars
        self._metrics = DraftMetrics(recorder)
        self._model = (
            DraftModel(config.speculation, engine, self._metrics.count_trouble)
            if engine is not None
            else None
        )
        self._lookup = (
            PromptLookup(config.speculation) if "ngram" in config.speculation.drafters else None
        )
        self._max_rows = config.draft.max_step_tokens
        self._max_chunk = config.draft.max_prefill_chunk

    # -- called from other threads ------------------------------------------------------

    def prepare(self, request: SessionRequest) -> TokenConstraint | None:
        """The grammar that ``open`` will need: compiling may take long. Raises as ``open`` does."""
        return constraint_for(request, self._grammars)

    def open(
        self, request: SessionRequest, router_id: str, constraint: TokenConstraint | None = None
    ) -> None:
        """Take up a session; it is drafted for from the next step on.

        ``constraint``: what ``prepare`` gave for this request, where it was asked.
        """
        constraint = constraint or self.prepare(request)
        self._mailbox.post(lambda: self._open(request, router_id, constraint))

    def observe(self, report: StepReport) -> None:
        """Learn what a target decided; sessions that are not here are ignored."""
        self._mailbox.post(lambda: self._observe(report))

    def reconfigure(self, speculation: SpeculationConfig) -> None:
        """Apply new speculation settings to sessions from the next root on."""
        self._mailbox.post(lambda: self._reconfigure(speculation))

    def stats(self) -> dict[str, float]:
        """Sessions and KV use, for health and autoscaling."""
        return engine_gauges(self.engine, len(self._sessions), 0)

    # -- on the engine thread -----------------------------------------------------------

    def step(self) -> bool:
        """One draft step over all sessions; False when there is nothing to grow."""
        self._take_messages()
        self._offer_ready(0.0)
        batch = self._choose_work()
        if not batch:
            return False
        assert self._model is not None
        began = time.monotonic()
        try:
            self._model.forward(batch)
        except Exception:  # the boundary: one bad step costs its batch the model, nothing else
            logger.exception("a draft step failed")
            self._give_up(batch)
            return True
        step_s = time.monotonic() - began
        self._metrics.observe_step(step_s)
        self._offer_ready(step_s)
        return True

    def _open(
        self, request: SessionRequest, router_id: str, constraint: TokenConstraint | None
    ) -> None:
        start = request.num_prompt_tokens
        sampling = SamplingState(
            request.sampling,
            request.committed[:start],
            self.engine.eos_token_ids if self.engine is not None else (),
            request.committed[start:],
            constraint,
        )
        session = DraftSession(
            request=request,
            router_id=router_id,
            tokens=list(request.committed),
            sampling=sampling,
            noise=Noise(request.sampling.seed or 0),
            rule=get_rule(request.rule),
            limits=GrowthLimits.of(self._settings, request),
            num_draws=len(request.committed) << 32,  # never again what another draft drew
            last_active_s=time.monotonic(),
        )
        self._sessions[request.session_id] = session
        # Also while the mode is off: it may be turned on before the session ends.
        if self._model is not None and request.max_speculative_tokens != 0:
            self._model.attach(session)
        self._at_new_root(session, ())

    def _observe(self, report: StepReport) -> None:
        for verdict in report.verdicts:
            session = self._sessions.get(verdict.session_id)
            if session is None:
                continue
            if verdict.finish_reason is not None:
                self._close([verdict.session_id])
            else:
                self._follow(session, verdict)

    def _follow(self, session: DraftSession, verdict: Verdict) -> None:
        """Commit in order: verdicts can overtake each other, and can repeat what is known."""
        note_use(session, verdict)
        session.early[verdict.base_len] = verdict.tokens
        session.last_active_s = time.monotonic()
        for base_len in sorted(session.early):
            if base_len > session.committed_len:
                break
            tokens = session.early.pop(base_len)[session.committed_len - base_len :]
            if tokens:
                self._commit(session, tokens)

    def _commit(self, session: DraftSession, tokens: tuple[int, ...]) -> None:
        session.limits = GrowthLimits.of(self._settings, session.request)
        if self._model is not None:
            self._model.commit(session, tokens)
        else:
            session.tree.clear()
            session.tokens.extend(tokens)
        session.sampling.commit(tokens)
        session.offered_score = None
        self._at_new_root(session, tokens)

    def _at_new_root(self, session: DraftSession, tokens: Sequence[int]) -> None:
        if self._lookup is not None and session.limits.max_nodes:
            self._lookup.committed(session, tokens)
            self._lookup.propose(session)

    def _close(self, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            session = self._sessions.pop(session_id, None)
            if session is None:
                continue
            if self._lookup is not None:
                self._lookup.forget(session)
            if self._model is not None:
                self._model.detach(session)

    def _reconfigure(self, speculation: SpeculationConfig) -> None:
        self._settings = speculation
        for session in self._sessions.values():
            session.num_unused = 0  # what was not used before says nothing now

    # -- what to grow -------------------------------------------------------------------

    def _choose_work(self) -> list[Work]:
        if self._model is None or self.engine is None:
            return []
        batch: list[Work] = []
        rows_left = self._max_rows
        # Sessions whose target waits for an offer come before those that grow ahead.
        order = sorted(
            self._sessions.values(), key=lambda s: (s.offered_score is not None, s.last_active_s)
        )
        for session in order:
            max_nodes, max_depth = growth(session)
            if not max_nodes or self._model.is_complete(session, max_nodes, max_depth):
                continue
            work = self._model.work_for(session, min(rows_left, self._max_chunk), max_depth)
            if work is not None and self._reserve(work):
                batch.append(work)
                rows_left -= len(work.rows.tokens)
        return batch

    def _reserve(self, work: Work) -> bool:
        assert self.engine is not None and self._model is not None
        while not self.engine.reserve(work.rows.seq, len(work.rows.tokens)):
            idle = self._idle_session(work.session)
            if idle is None:
                self._metrics.count_trouble("starved")
                return False
            self._model.detach(idle)
        return True

    def _give_up(self, batch: Sequence[Work]) -> None:
        assert self._model is not None
        for work in batch:
            self._metrics.count_trouble("failed")
            self._model.detach(work.session)

    def _idle_session(self, but: DraftSession) -> DraftSession | None:
        horizon = time.monotonic() - IDLE_AFTER_S
        idle = [
            s
            for s in self._sessions.values()
            if s is not but and s.sequence is not None and s.last_active_s < horizon
        ]
        return min(idle, key=lambda s: s.last_active_s, default=None)

    # -- what to offer ------------------------------------------------------------------

    def _offer_ready(self, step_s: float) -> None:
        by_target: dict[tuple[str, str], list[CandidateTree]] = defaultdict(list)
        for session in self._sessions.values():
            key = (session.router_id, session.request.target_id)
            if notice := rest_notice(session):
                by_target[key].append(notice)
            elif session.offered_score is None and is_ready(session, self._model):
                by_target[key].append(make_offer(session))
        for (router_id, target_id), trees in by_target.items():
            self._metrics.count_offers(trees)
            self._on_offers(router_id, target_id, Offers(self.draft_id, tuple(trees), step_s))
