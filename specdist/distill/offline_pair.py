"""A target worker and a draft worker joined in one process: the served loop, step by step.

The messages are the ones that travel over Ray in the application; here they are handed over
at once. Whoever steps the pair decides how often the draft steps between two target steps;
the default is the deterministic schedule: until its trees are complete. Knows no text and no
models' names. Called by ``eval_acceptance``, ``eval_runs`` and tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdist.config import AppConfig
from specdist.engine.engine import Engine
from specdist.errors import InternalError
from specdist.grammar import Grammars
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport, Verdict
from specdist.speculation.cost_model import CostModel
from specdist.workers.draft_worker import DraftWorker
from specdist.workers.target_worker import TargetWorker

ROUTER = "r0"
TROUBLE = "specdist_draft_trouble"
MAX_IDLE_STEPS = 10  # target steps in a row that decide nothing while answers are open


@dataclass
class Answer:
    """What one session has got so far."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def num_accepted(self) -> int:
        """Candidates that were kept."""
        return sum(v.num_accepted for v in self.verdicts)

    @property
    def num_draft_tokens(self) -> int:
        """Candidates that were verified."""
        return sum(v.num_draft_tokens for v in self.verdicts)


class OfflinePair:
    """Both workers around their engines, and the answers by session."""

    def __init__(
        self,
        config: AppConfig,
        target: Engine,
        draft: Engine | None,
        cost: CostModel | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """``draft`` is None when no model drafts; ``cost`` spares profiling the target again.

        ``grammars``: over the pair's vocabulary, for requests with structured output.
        """
        self.config = config
        self.target_engine, self.draft_engine = target, draft
        self.answers: dict[str, Answer] = {}
        self._draft_recorder = Recorder("Draft:d0")
        self.target = TargetWorker(
            config, "t0", self._on_report, Recorder("Target:t0"), target, cost, grammars
        )
        self.draft = DraftWorker(
            config, "d0", self._on_offers, self._draft_recorder, draft, grammars
        )

    def open(self, request: SessionRequest) -> Answer:
        """Start one session on both workers."""
        answer = self.answers[request.session_id] = Answer()
        self.target.open(request, ROUTER)
        if request.speculate:
            self.draft.open(request, ROUTER)
        return answer

    def step(self, draft_steps: int | None = None) -> bool:
        """The draft until nothing is left to grow (or so many steps), then the target once.

        Returns whether the target had anything to do.
        """
        self._draft(draft_steps)
        return self.target.step()

    def answer_all(
        self,
        requests: Sequence[SessionRequest],
        concurrency: int,
        on_done: Callable[[int], None] | None = None,
    ) -> list[Answer]:
        """Answer every request, ``concurrency`` of them together; the order is the requests'.

        ``on_done`` is told how many are complete. Raises InternalError when a step fails.
        """
        waiting, done, num_idle = deque(requests), {}, 0
        while waiting or self.answers:
            while waiting and len(self.answers) < concurrency:
                self.open(waiting.popleft())
            num_idle = 0 if self.step() else num_idle + 1
            if num_idle > MAX_IDLE_STEPS:
                raise InternalError(f"the target decides nothing for {sorted(self.answers)}")
            for session_id in [i for i, a in self.answers.items() if a.finish_reason]:
                done[session_id] = _sound(session_id, self.answers.pop(session_id))
                if on_done is not None:
                    on_done(len(done))
        self.step()  # both close what has ended
        return [done[request.session_id] for request in requests]

    def take_draft_trouble(self) -> dict[str, int]:
        """What kept the draft from drafting since the last call, by reason."""
        counters = self._draft_recorder.take_delta()["counters"]
        return {labels[0]: int(n) for (name, labels), n in counters.items() if name == TROUBLE}

    def _draft(self, draft_steps: int | None) -> None:
        num_steps = 0
        while (draft_steps is None or num_steps < draft_steps) and self.draft.step():
            num_steps += 1

    def _on_report(self, router_id: str, report: StepReport) -> None:
        for verdict in report.verdicts:
            answer = self.answers[verdict.session_id]
            answer.tokens.extend(verdict.tokens)
            answer.verdicts.append(verdict)
            answer.finish_reason = verdict.finish_reason
        self.draft.observe(report)

    def _on_offers(self, router_id: str, target_id: str, offers: Offers) -> None:
        self.target.offer(offers)


def _sound(session_id: str, answer: Answer) -> Answer:
    if answer.finish_reason == "error":
        raise InternalError(f"{session_id}: {answer.verdicts[-1].error}")
    return answer
