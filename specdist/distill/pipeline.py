"""The whole of ``specdist distill``: four phases, each taken up where it was left.

Joins the phases and keeps their settings apart: the data folder remembers what decides the
answers, the training folder what decides the weights; a run with other settings is refused
with the name of the differing field. Called by ``specdist.cli.distill``.
"""

from __future__ import annotations

from pathlib import Path

from specdist.distill.files import digest, model_digest, read_json_file, write_json
from specdist.distill.pool import Pool, build_pool
from specdist.distill.progress import Progress, silent
from specdist.distill.settings import DATA_FIELDS, DistillSettings, check_same
from specdist.models.resolve import resolve_model

DATA_SETTINGS = "settings.json"


class Pipeline:
    """One run in one folder."""

    def __init__(self, settings: DistillSettings, progress: Progress = silent) -> None:
        self.settings = settings
        self.progress = progress
        self.target_folder: Path = resolve_model(settings.target)

    def run(self) -> None:
        """Every phase, or the one that was asked for."""
        phases = {
            "prompts": self.make_prompts,
            "answers": self.make_answers,
        }
        wanted = [self.settings.only] if self.settings.only else list(phases)
        for name in wanted:
            phases[name]()

    def make_prompts(self) -> Pool:
        """Phase 1: the pool of prompts and documents."""
        return build_pool(self.settings, self.progress)

    def make_answers(self) -> None:
        """Phase 2: shards of the target's answers."""
        from specdist.distill.answers import AnswersPhase
        from specdist.distill.target_engine import open_target

        pool = self.make_prompts()
        name = self._check_data(pool)
        target = open_target(self.target_folder, self.settings)
        AnswersPhase(self.settings, pool, target, name, self.progress).run()

    def _check_data(self, pool: Pool) -> str:
        """The name of what decides the answers; refuses a folder that was made otherwise."""
        now = self.settings.part(DATA_FIELDS)
        now |= {"target": model_digest(self.target_folder), "prompts": pool.digest}
        path = self.settings.data_folder / DATA_SETTINGS
        if path.is_file():
            advice = "use another --out or --data"
            check_same(read_json_file(path), now, f"{self.settings.data_folder}", advice)
        else:
            write_json(path, now)
        return digest(now)
