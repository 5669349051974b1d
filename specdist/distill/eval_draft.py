"""``specdist eval-draft``: how good are these drafts for this target, and what would each gain?

Checks everything first, loads the target once and the drafts one after the other, and puts
what ``eval_runs`` measures into one report. Prints nothing. Called by the command line.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import transformers

import specdist
from specdist.api.tokenizer import Tokenizer
from specdist.distill.eval_cost import curve_ms, measure_cost
from specdist.distill.eval_models import Checked, check_models
from specdist.distill.eval_prompts import PromptFile, fit
from specdist.distill.eval_report import (
    AgreementReport,
    DraftCost,
    DraftReport,
    EvalReport,
    PromptReport,
    count_errors,
    rank,
)
from specdist.distill.eval_runs import TargetRuns
from specdist.distill.eval_settings import DraftSpec, EvalSettings
from specdist.engine.dtypes import resolve_dtype
from specdist.models.progress import Progress, log_phases
from specdist.speculation.cost_model import CostModel


def evaluate_drafts(
    drafts: Sequence[str],
    settings: EvalSettings,
    file: PromptFile,
    all_turns: bool = False,
    progress: Progress = log_phases,
) -> EvalReport:
    """Measure every draft; what does not fit is refused before any weights are loaded."""
    specs = tuple(DraftSpec.parse(draft) for draft in drafts)
    settings.check_drafts(specs)
    target, models = check_models(specs, settings, progress)
    tokenizer = Tokenizer.load(target.folder)
    context = target.pair.target_max_len
    fitted = fit(file.conversations, tokenizer, all_turns, settings.max_tokens, context)
    runs = TargetRuns(settings, target, fitted, progress)
    runs.prepare(tokenizer, all_turns)
    found: dict[str, DraftReport] = {}
    for model in dict.fromkeys(spec.model for spec in specs):
        same = [spec for spec in specs if spec.model == model]
        reports = _try_model(runs, same, None if model is None else models[model])
        found |= {report.name: report for report in reports}
    prompts = _prompt_report(file, runs, fitted.skipped)
    return _report(runs, prompts, tuple(found[spec.name] for spec in specs))


def _try_model(
    runs: TargetRuns, specs: Sequence[DraftSpec], model: Checked | None
) -> list[DraftReport]:
    """Everything about the drafts that use one model (or none), which is loaded once."""
    settings, engine, cost = runs.settings, None, None
    agreement: tuple[AgreementReport, ...] = ()
    if model is not None:
        engine = runs.load(model, is_draft=True)
        cost = measure_cost(engine)
        name = specs[0].model or ""
        agreement = tuple(runs.agreement(engine, t, name) for t in settings.temperatures)
    return [
        DraftReport(
            name=spec.name,
            folder=None if model is None else str(model.folder),
            num_draft_outputs=None if model is None else model.pair.num_draft_outputs,
            warnings=() if model is None else model.pair.warnings,
            cost=None if cost is None else _draft_cost(cost, runs.cost),
            agreement=agreement,
            runs=tuple(
                runs.run(spec, engine, cost, temperature, shape)
                for temperature in settings.temperatures
                for shape in settings.shapes
            ),
        )
        for spec in specs
    ]


def _draft_cost(draft: CostModel, target: CostModel) -> DraftCost:
    return DraftCost(
        step_ms=1e3 * draft.step_s(1),
        ratio_to_target_step=draft.step_s(1) / target.step_s(1),
        curve_ms=curve_ms(draft),
    )


def _prompt_report(file: PromptFile, runs: TargetRuns, skipped: tuple[str, ...]) -> PromptReport:
    return PromptReport(
        path=str(file.path),
        sha256=file.sha256,
        num_lines=file.num_lines,
        num_prompts=len(runs.prompts),
        categories=dict(Counter(prompt.category for prompt in runs.prompts)),
        skipped=skipped,
    )


def _report(runs: TargetRuns, prompts: PromptReport, drafts: tuple[DraftReport, ...]) -> EvalReport:
    settings = runs.settings
    dtype = resolve_dtype(settings.dtype, runs.engine.device)
    every_run = [run for draft in drafts for run in draft.runs]
    return EvalReport(
        target=settings.target,
        settings={**dataclasses.asdict(settings), "shapes": [s.name for s in settings.shapes]},
        environment=_environment(dtype, runs.engine.device),
        prompts=prompts,
        target_step_ms=1e3 * runs.cost.step_s(1),
        target_curve_ms=curve_ms(runs.cost),
        drafts=drafts,
        ranking=rank(drafts, settings.temperatures),
        num_errors=count_errors(every_run) if dtype == torch.float32 else 0,
    )


def _environment(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    return {
        "specdist": specdist.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
