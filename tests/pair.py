"""A target worker and a draft worker joined directly: the whole loop in one process.

The messages are the ones that travel over Ray in the application; here they are handed
over at once, and the test decides how often the draft steps between two target steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdist.config import AppConfig, EngineConfig, RulesConfig, SpeculationConfig
from specdist.engine.engine import Engine
from specdist.engine.loader import prepare
from specdist.metrics.recorder import Recorder
from specdist.protocol.candidates import Offers
from specdist.protocol.request import SamplingParams, SessionRequest
from specdist.protocol.verdict import StepReport, Verdict
from specdist.workers.draft_worker import DraftWorker
from specdist.workers.target_worker import TargetWorker

SMALL_POOL = {"kv_cache_bytes": 64 << 20, "max_model_len": 256}


@dataclass
class Answer:
    """What one session has got so far."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def num_accepted(self) -> int:
        return sum(v.num_accepted for v in self.verdicts)

    @property
    def num_draft_tokens(self) -> int:
        return sum(v.num_draft_tokens for v in self.verdicts)


class Pair:
    """Both workers, their engines, and the answers by session."""

    def __init__(
        self,
        target_model: object,
        draft_model: object | None = None,
        *,
        target: dict[str, object] | None = None,
        draft: dict[str, object] | None = None,
        speculation: SpeculationConfig | None = None,
        rules: RulesConfig | None = None,
        vocab_size: int | None = None,
    ) -> None:
        speculation = speculation or SpeculationConfig()
        self.config = AppConfig(
            target=EngineConfig(dtype="float32", **{**SMALL_POOL, **(target or {})}),
            draft=EngineConfig(dtype="float32", **{**SMALL_POOL, **(draft or {})}),
            speculation=dataclasses.replace(speculation, max_wait_s=0.0),
            rules=rules or RulesConfig(allow_lossy=True),
        )
        loaded = prepare(target_model)
        self.target_engine = Engine(loaded, self.config.target, vocab_size)
        self.draft_engine = None
        if draft_model is not None:
            self.draft_engine = Engine(
                prepare(draft_model), self.config.draft, self.target_engine.vocab_size
            )
        self.answers: dict[str, Answer] = {}
        self.reports: list[StepReport] = []
        self.target = TargetWorker(
            self.config, "t0", self._on_report, Recorder("Target:t0"), self.target_engine
        )
        self.draft = DraftWorker(
            self.config, "d0", self._on_offers, Recorder("Draft:d0"), self.draft_engine
        )

    def _on_report(self, router_id: str, report: StepReport) -> None:
        self.reports.append(report)
        for verdict in report.verdicts:
            answer = self.answers[verdict.session_id]
            answer.tokens.extend(verdict.tokens)
            answer.verdicts.append(verdict)
            answer.finish_reason = verdict.finish_reason
        self.draft.observe(report)

    def _on_offers(self, router_id: str, target_id: str, offers: Offers) -> None:
        self.target.offer(offers)

    def open(self, request: SessionRequest) -> Answer:
        """Start one session on both workers."""
        answer = self.answers[request.session_id] = Answer()
        self.target.open(request, "r0")
        if request.speculate:
            self.draft.open(request, "r0")
        return answer

    def run(self, draft_steps: int = 8, max_steps: int = 3000) -> None:
        """Step both until every answer is complete."""
        for _ in range(max_steps):
            if all(a.finish_reason for a in self.answers.values()):
                self.target.step()
                self.draft.step()
                return
            for _ in range(draft_steps):
                if not self.draft.step():
                    break
            self.target.step()
        raise AssertionError(f"not finished after {max_steps} steps: {self.answers}")

    def generate(
        self, prompts: Sequence[Sequence[int]], draft_steps: int = 8, **options: object
    ) -> list[Answer]:
        """Answer all prompts together."""
        start = len(self.answers)
        answers = [
            self.open(request(f"s{start + i}", prompt, **options))
            for i, prompt in enumerate(prompts)
        ]
        self.run(draft_steps)
        return answers


def request(
    session_id: str,
    prompt: Sequence[int],
    *,
    speculate: bool = True,
    rule: str = "coupled",
    max_speculative_tokens: int | None = None,
    num_logprobs: int | None = None,
    **sampling: object,
) -> SessionRequest:
    """A session request with everything resolved; greedy, 16 tokens, seed 0 unless told."""
    params = {"max_tokens": 16, "temperature": 0.0, "seed": 0, **sampling}
    return SessionRequest(
        session_id=session_id,
        committed=tuple(prompt),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(**params),  # type: ignore[arg-type]
        rule=rule,
        speculate=speculate,
        max_speculative_tokens=max_speculative_tokens,
        num_logprobs=num_logprobs,
    )
