"""The whole of ``specdist distill``: four phases, each taken up where it was left.

Joins the phases and keeps their settings apart: the data folder remembers what decides the
answers, the training folder what decides the weights; a run with other settings is refused
with the name of the differing field. Called by ``specdist.cli.distill``.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdist.distill.files import digest, model_digest, read_json_file, write_json, write_text
from specdist.distill.pool import MANIFEST, Pool, build_pool
from specdist.distill.progress import Progress, silent
from specdist.distill.settings import DATA_FIELDS, PHASES, DistillSettings, check_same
from specdist.errors import ConfigError
from specdist.models.resolve import resolve_model

if TYPE_CHECKING:
    from specdist.distill.training import Training

DATA_SETTINGS, TIMES = "settings.json", "times.json"
PAUSED = "paused: run the same command again to go on"


class Pipeline:
    """One run in one folder."""

    def __init__(self, settings: DistillSettings, progress: Progress = silent) -> None:
        self.settings = settings
        self.progress = progress
        self.target_folder: Path = resolve_model(settings.target, progress)

    def run(self) -> dict[str, Any]:
        """Every phase, or the one that was asked for; returns where things are."""
        if self.settings.dry_run:
            from specdist.distill.estimate import estimate

            return estimate(self.settings, self.target_folder)
        if self.settings.only in (None, "export"):
            from specdist.distill.report import check_matplotlib

            check_matplotlib()
        result: dict[str, Any] = {"out": str(self.settings.out_folder)}
        for phase in (self.settings.only,) if self.settings.only else PHASES:
            began = time.monotonic()
            result |= getattr(self, f"make_{phase}")()
            self._note_seconds(str(phase), time.monotonic() - began)
            if result.get("status") == PAUSED:
                break
        return result

    def make_prompts(self) -> dict[str, Any]:
        """Phase 1: the pool of prompts and documents."""
        pool = self.pool
        return {"prompts": sum(len(s.prompts) + len(s.documents) for s in pool.sources)}

    @cached_property
    def pool(self) -> Pool:
        """Built from the files, or read from the data folder."""
        return build_pool(self.settings, self.progress)

    def make_answers(self) -> dict[str, Any]:
        """Phase 2: shards of the target's answers."""
        from specdist.distill.answers import AnswersPhase
        from specdist.distill.target_engine import open_target

        name = self.check_data()
        target = open_target(self.target_folder, self.settings)
        phase = AnswersPhase(self.settings, self.pool, target, name, self.progress)
        phase.run()
        return {"answer_tokens": phase.num_tokens}

    def check_data(self) -> str:
        """The name of what decides the answers; refuses a folder that was made otherwise."""
        now = self.settings.part(DATA_FIELDS)
        now |= {"target": model_digest(self.target_folder), "prompts": self.pool.digest}
        path = self.settings.data_folder / DATA_SETTINGS
        if path.is_file():
            advice = "use another --out or --data"
            check_same(read_json_file(path), now, f"{self.settings.data_folder}", advice)
        else:
            write_json(path, now)
        return digest(now)

    @cached_property
    def training(self) -> Training:
        """Teacher, data and student of this run."""
        from specdist.distill.training import Training

        path = self.settings.data_folder / DATA_SETTINGS
        if not path.is_file():
            raise ConfigError(f"{self.settings.data_folder} has no answers: run that phase first")
        made_for = read_json_file(path)
        target = model_digest(self.target_folder)
        if made_for["target"] != target:
            raise ConfigError(
                f"{self.settings.data_folder} holds answers of target {made_for['target']}, "
                f"this one is {target}"
            )
        return Training(self.settings, self.target_folder, digest(made_for), self.progress)

    def make_train(self) -> dict[str, Any]:
        """Phase 3: checkpoints of the student."""
        outcome = self.training.run()
        return {"step": outcome.step, "status": "trained" if outcome.is_complete else PAUSED}

    def make_export(self) -> dict[str, Any]:
        """Phase 4: the draft, its card, the report and the provenance."""
        from specdist.distill.export import export_draft, export_slim
        from specdist.distill.model_card import model_card
        from specdist.distill.report import html_report
        from specdist.distill.run_record import PROVENANCE, describe_run

        out, trained = self.settings.out_folder, self.training.best()
        report = export_draft(trained.student, self.target_folder, out / "draft")
        folders = [out / "draft"]
        if self.settings.slim:
            name = self.settings.target_name or self.settings.target
            export_slim(trained.student, out / "draft-slim", name)
            folders.append(out / "draft-slim")
        figures = self.training.final_figures(trained.student)
        record = describe_run(self, trained, report, folders)
        write_json(out / PROVENANCE, {**record, "figures": figures})
        for folder in folders:
            write_text(folder / "README.md", model_card(record, figures))
        write_text(out / "report.html", html_report(record, record["losses"], figures))
        return {"draft": str(out / "draft"), "figures": figures["all"]}

    @property
    def pool_record(self) -> dict[str, Any]:
        """What phase 1 wrote down about its sources."""
        record: dict[str, Any] = read_json_file(self.settings.data_folder / MANIFEST)
        return record

    @property
    def seconds(self) -> dict[str, float]:
        """How long each phase has taken so far, all calls together."""
        path = self.settings.out_folder / TIMES
        times: dict[str, float] = read_json_file(path) if path.is_file() else {}
        return times

    def _note_seconds(self, phase: str, seconds: float) -> None:
        times = self.seconds
        times[phase] = round(times.get(phase, 0.0) + seconds, 1)
        write_json(self.settings.out_folder / TIMES, times)
