"""An ``OfflinePair`` around models in memory, with small pools; the test decides the schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdist.config import AppConfig, EngineConfig, RulesConfig, SpeculationConfig
from specdist.distill.offline_pair import Answer, OfflinePair
from specdist.engine.engine import Engine
from specdist.engine.loader import prepare
from specdist.grammar import Grammars
from specdist.protocol.request import SamplingParams, SessionRequest
from specdist.protocol.verdict import StepReport

SMALL_POOL = {"kv_cache_bytes": 64 << 20, "max_model_len": 256}


class Pair(OfflinePair):
    """Both workers, their engines, the answers by session and every report."""

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
        grammars: Grammars | None = None,
    ) -> None:
        speculation = speculation or SpeculationConfig()
        config = AppConfig(
            target=EngineConfig(dtype="float32", **{**SMALL_POOL, **(target or {})}),
            draft=EngineConfig(dtype="float32", **{**SMALL_POOL, **(draft or {})}),
            speculation=dataclasses.replace(speculation, max_wait_s=0.0),
            rules=rules or RulesConfig(allow_lossy=True),
        )
        target_engine = Engine(prepare(target_model), config.target, vocab_size)
        draft_engine = None
        if draft_model is not None:
            draft_engine = Engine(prepare(draft_model), config.draft, target_engine.vocab_size)
        self.reports: list[StepReport] = []
        super().__init__(config, target_engine, draft_engine, grammars=grammars)

    def _on_report(self, router_id: str, report: StepReport) -> None:
        self.reports.append(report)
        super()._on_report(router_id, report)

    def run(self, draft_steps: int = 8, max_steps: int = 3000) -> None:
        """Step both until every answer is complete."""
        for _ in range(max_steps):
            if all(a.finish_reason for a in self.answers.values()):
                self.target.step()
                self.draft.step()
                return
            self.step(draft_steps)
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


__all__ = ["Answer", "Pair", "request"]
