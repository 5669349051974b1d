"""What an evaluation of drafts comes to: plain records, and the ranking that follows.

Everything in these records goes into the JSON report as it stands. Knows no engine.
Made by ``eval_draft``, laid out by ``eval_tables``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdist.distill import files
from specdist.distill.eval_acceptance import Acceptance, Difference
from specdist.distill.eval_agreement import Agreement


@dataclass(frozen=True)
class AgreementReport:
    """Agreement at the answers that the target gave at one temperature."""

    temperature: float
    overall: Agreement
    categories: dict[str, Agreement]


@dataclass(frozen=True)
class Run:
    """All prompts answered with one draft, one shape of tree, at one temperature."""

    temperature: float
    shape: str
    overall: Acceptance
    categories: dict[str, Acceptance]
    differences: tuple[Difference, ...]  # from plain decoding's answers
    trouble: dict[str, int]  # what kept the draft from drafting, by reason


@dataclass(frozen=True)
class DraftCost:
    """What the draft's model costs."""

    step_ms: float  # one row
    ratio_to_target_step: float
    curve_ms: dict[int, float]  # by rows


@dataclass(frozen=True)
class DraftReport:
    """One draft."""

    name: str
    folder: str | None  # None: no model drafts
    num_draft_outputs: int | None  # tokens that the model can propose
    warnings: tuple[str, ...]
    cost: DraftCost | None
    agreement: tuple[AgreementReport, ...]
    runs: tuple[Run, ...]

    def best_run(self, temperature: float) -> Run:
        """The shape with the highest predicted speed-up on shared cores."""
        runs = [run for run in self.runs if run.temperature == temperature]
        return max(runs, key=lambda run: run.overall.predicted.speed_up_shared)


@dataclass(frozen=True)
class BestShape:
    """The best shape of one draft at one temperature, and what it gains."""

    temperature: float
    shape: str
    mean_acceptance_length: float
    speed_up_shared: float
    speed_up_hidden: float


@dataclass(frozen=True)
class Rank:
    """A draft's place: by the geometric mean over temperatures of ``speed_up_shared``."""

    draft: str
    speed_up_shared: float
    speed_up_hidden: float
    best: tuple[BestShape, ...]


@dataclass(frozen=True)
class PromptReport:
    """What was asked."""

    path: str
    sha256: str
    num_lines: int
    num_prompts: int
    categories: dict[str, int]
    skipped: tuple[str, ...]  # too long for the target's context


@dataclass(frozen=True)
class EvalReport:
    """Everything."""

    target: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    prompts: PromptReport
    target_step_ms: float  # one row: a step of plain decoding
    target_curve_ms: dict[int, float]
    drafts: tuple[DraftReport, ...]
    ranking: tuple[Rank, ...]
    num_errors: int  # greedy float32 answers that differ from plain ones by more than a tie


def rank(drafts: Sequence[DraftReport], temperatures: Sequence[float]) -> tuple[Rank, ...]:
    """Drafts by falling predicted speed-up; the one named first wins a tie."""
    ranks = [_rank(draft, temperatures) for draft in drafts]
    return tuple(sorted(ranks, key=lambda r: -r.speed_up_shared))


def _rank(draft: DraftReport, temperatures: Sequence[float]) -> Rank:
    best = []
    for temperature in temperatures:
        run = draft.best_run(temperature)
        best.append(
            BestShape(
                temperature=temperature,
                shape=run.shape,
                mean_acceptance_length=run.overall.mean_acceptance_length,
                speed_up_shared=run.overall.predicted.speed_up_shared,
                speed_up_hidden=run.overall.predicted.speed_up_hidden,
            )
        )
    return Rank(
        draft=draft.name,
        speed_up_shared=_geometric_mean([b.speed_up_shared for b in best]),
        speed_up_hidden=_geometric_mean([b.speed_up_hidden for b in best]),
        best=tuple(best),
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def count_errors(runs: Sequence[Run]) -> int:
    """Greedy answers that left plain decoding's where the decision was no tie."""
    greedy = [run for run in runs if run.temperature == 0]
    return sum(not d.is_tie for run in greedy for d in run.differences)


def write_json(report: EvalReport, path: Path) -> None:
    """The whole report."""
    files.write_json(path, dataclasses.asdict(report))
