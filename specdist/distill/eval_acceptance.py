"""How much of a draft the target accepts: the real workers answer every prompt, and are counted.

One ``Tally`` for each category counts what verdicts say and what the draft's engine did for
it. A session's first verdict ends its prefill and carries no candidates: neither it nor what
the draft did before it is a decoding step. Also compares answers with plain decoding's, token
by token. Knows no model's name. Called by ``eval_runs``.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdist.config import AppConfig
from specdist.distill.eval_agreement import Answered, answer_logits
from specdist.distill.eval_cost import Prediction, Work, predict, total_work
from specdist.distill.offline_pair import OfflinePair
from specdist.engine.engine import Engine
from specdist.engine.sequence import Rows
from specdist.protocol.request import SamplingParams
from specdist.protocol.verdict import StepReport, Verdict
from specdist.speculation.cost_model import CostModel
from specdist.speculation.noise import Noise
from specdist.speculation.sampling import SamplingState, scores
from specdist.speculation.stats import SpeculationStats

TIE = 1e-3  # two candidates for the next token closer than this are equal in float32


@dataclass(frozen=True)
class Acceptance:
    """What verification did with the candidates of one group of prompts."""

    num_prompts: int
    num_generated_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_by_depth: tuple[float, ...]  # [i]: drafts of which more than i tokens were kept
    mean_acceptance_length: float
    draft_acceptance_rate: float
    draft_token_share: float
    num_steps: int  # decoding steps of the target
    draft_passes_per_step: float
    predicted: Prediction


@dataclass(frozen=True)
class Difference:
    """The first place where an answer left plain decoding's."""

    prompt: str
    position: int  # in the answer, from 0
    got: int | None
    expected: int | None
    gap: float  # between the two best scores there
    is_tie: bool


class ObservedEngine(Engine):
    """An engine that tells who took part in each forward pass, and how long it computed."""

    on_forward: Callable[[Sequence[Rows]], None] | None = None
    forward_s = 0.0  # processor seconds of this thread, all passes so far

    def forward(self, items: Sequence[Rows]) -> list[Tensor]:
        """As Engine.forward."""
        if self.on_forward is not None:
            self.on_forward(items)
        began = time.thread_time()
        logits = super().forward(items)
        if self.device.type == "cuda":  # the time of a pass ends when its logits are there
            torch.cuda.synchronize(self.device)
        self.forward_s += time.thread_time() - began
        return logits


class Tally:
    """Counts of one group of prompts."""

    def __init__(self) -> None:
        self.num_prompts = 0
        self.num_steps = 0
        self.num_tokens = 0  # of decoding steps
        self.stats = SpeculationStats()
        self.candidates: Counter[int] = Counter()
        self.passes: Counter[int] = Counter()

    def begin(self, verdict: Verdict) -> None:
        """A session's first verdict."""
        self.num_prompts += 1
        self._observe(verdict)

    def go_on(self, verdict: Verdict, passes: Counter[int]) -> None:
        """A decoding step; ``passes``: rows of this session in the draft's passes before it."""
        self.num_steps += 1
        self.num_tokens += len(verdict.tokens)
        self.candidates[verdict.num_draft_tokens] += 1
        self.passes.update(passes)
        self._observe(verdict)

    def _observe(self, verdict: Verdict) -> None:
        self.stats.observe(verdict.num_draft_tokens, verdict.num_accepted, len(verdict.tokens))

    def work(self, drafter_s: float) -> Work:
        """What the decoding steps consisted of."""
        return Work(self.num_steps, self.num_tokens, self.candidates, self.passes, drafter_s)


class MeasuredPair(OfflinePair):
    """An offline pair that counts by category."""

    def __init__(
        self,
        config: AppConfig,
        target: Engine,
        draft: ObservedEngine | None,
        cost: CostModel,
        categories: Mapping[str, str],
    ) -> None:
        """``categories``: the category of each session id."""
        super().__init__(config, target, draft, cost)
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self._categories = categories
        self._passes: dict[str, Counter[int]] = defaultdict(Counter)
        self._draft_engine = draft
        self._drafter_s = 0.0
        self._num_verdicts = 0
        if draft is not None:
            draft.on_forward = self._on_forward

    @property
    def drafter_s(self) -> float:
        """Processor seconds per step that drafting took outside its model."""
        return self._drafter_s / max(self._num_verdicts, 1)

    def _draft(self, draft_steps: int | None) -> None:
        began = time.thread_time() - self._model_s
        super()._draft(draft_steps)
        self._drafter_s += max(time.thread_time() - self._model_s - began, 0.0)

    @property
    def _model_s(self) -> float:
        return self._draft_engine.forward_s if self._draft_engine is not None else 0.0

    def _on_forward(self, items: Sequence[Rows]) -> None:
        for rows in items:
            self._passes[rows.seq.session_id][len(rows.tokens)] += 1

    def _on_report(self, router_id: str, report: StepReport) -> None:
        for verdict in report.verdicts:
            tally = self.tallies[self._categories[verdict.session_id]]
            passes = self._passes.pop(verdict.session_id, Counter())
            self._num_verdicts += 1
            if self.answers[verdict.session_id].verdicts:
                tally.go_on(verdict, passes)
            else:
                tally.begin(verdict)
        super()._on_report(router_id, report)


def acceptance(
    tallies: Sequence[Tally],
    depth: int,
    drafter_s: float,
    target: CostModel,
    draft: CostModel | None,
) -> Acceptance:
    """The figures of some categories together; ``depth``: how deep the trees may reach."""
    stats = SpeculationStats()
    for tally in tallies:
        stats.add(tally.stats)
    summary = stats.to_summary()
    work = total_work([tally.work(drafter_s) for tally in tallies])
    drafts = max(stats.num_drafts, 1)
    per_position = [*stats.accepted_per_position, *[0] * depth][:depth]
    return Acceptance(
        num_prompts=sum(tally.num_prompts for tally in tallies),
        num_generated_tokens=stats.num_generated_tokens,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        acceptance_by_depth=tuple(n / drafts for n in per_position),
        mean_acceptance_length=summary.mean_acceptance_length,
        draft_acceptance_rate=summary.draft_acceptance_rate,
        draft_token_share=summary.draft_token_share,
        num_steps=work.num_steps,
        draft_passes_per_step=sum(work.draft_passes.values()) / max(work.num_steps, 1),
        predicted=predict(work, target, draft),
    )


def difference(
    target: Engine, plain: Answered, got: Sequence[int], params: SamplingParams
) -> Difference | None:
    """Where ``got`` leaves the plain answer, and how close the decision was there."""
    expected = plain.answer
    if tuple(got) == expected:
        return None
    pairs = enumerate(zip(got, expected, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:  # one stops where the other goes on
        place = min(len(got), len(expected))
        gap = float("inf")
    else:
        gap = decision_gap(target, (*plain.prompt, *expected[:place]), params)
    mine, theirs = (_at(tokens, place) for tokens in (got, expected))
    return Difference(plain.name, place, mine, theirs, gap, is_tie=gap < TIE)


def decision_gap(target: Engine, tokens: Sequence[int], params: SamplingParams) -> float:
    """Distance of the two best scores of the token that follows ``tokens`` in plain decoding."""
    (logits,) = answer_logits(target, (*tokens, 0), len(tokens))
    row = logits.double()[0]
    if params.temperature > 0:
        noise = Noise(params.seed or 0).gumbel_rows([len(tokens)], logits.shape[1], logits.device)
        row = scores(logits, SamplingState(params)).double()[0] + noise[0]
    best: list[Any] = row.topk(2).values.tolist()
    return float(best[0] - best[1])


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None
