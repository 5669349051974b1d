"""Phase 3 as a whole: teacher, data, student and trainer, set up or taken up again.

The training folder keeps what must not change while a training goes on: its settings, the
list of shards, the outputs. Called by ``pipeline``; the training itself is in ``train``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from specdist.api.tokenizer import Tokenizer
from specdist.distill.agreement import Figures, Measured, evaluate, prepare
from specdist.distill.batches import num_steps_of
from specdist.distill.checkpoints import BEST, load_parameters, load_tensors, save_tensors
from specdist.distill.dataset import Dataset, load_dataset, snapshot, subset
from specdist.distill.files import model_digest, read_json_file, write_json
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.output_vocab import choose_outputs, num_outputs
from specdist.distill.progress import Progress
from specdist.distill.settings import TRAIN_FIELDS, DistillSettings, check_same
from specdist.distill.student import Student, build_student
from specdist.distill.teacher import Teacher
from specdist.distill.train import Outcome, Trainer
from specdist.engine.loader import use_threads
from specdist.models.pair import check_pair
from specdist.models.resolve import resolve_model

SETTINGS, OUTPUTS, CURVE = "settings.json", "outputs.safetensors", "curve.json"
CURVE_SHARES = (0.25, 0.5, 1.0)
CURVE_STEPS = 4  # each point of the data curve takes one of so many parts of the steps


@dataclass(frozen=True)
class Trained:
    """The best student with its figures on the held-out answers."""

    student: Student
    about: dict[str, Any]  # step, tokens and figures of the best checkpoint


class Training:
    """One training in one folder."""

    def __init__(
        self, settings: DistillSettings, target_folder: Path, data_digest: str, progress: Progress
    ) -> None:
        self.settings, self.progress = settings, progress
        self.target_folder = target_folder
        self.folder = settings.out_folder / "train"
        self._data_digest = data_digest
        use_threads(settings.num_threads)

    def check_settings(self) -> None:
        """Refuse to go on with a training of other settings."""
        now = self.settings.part(TRAIN_FIELDS)
        if self.settings.start_from is not None:
            now["start_from"] = model_digest(resolve_model(self.settings.start_from, self.progress))
        path = self.folder / SETTINGS
        if path.is_file():
            advice = "use another --out (with --data for the same answers)"
            check_same(read_json_file(path), now, str(self.folder), advice)
        else:
            write_json(path, now)

    @cached_property
    def dataset(self) -> Dataset:
        """The answers of this training."""
        folder = self.settings.data_folder
        shards = snapshot(folder, self.folder)
        return load_dataset(folder, shards, self._data_digest, self.settings.held_out)

    @cached_property
    def teacher(self) -> Teacher:
        """The target, with the states of all answers prepared."""
        settings = self.settings
        cache = HiddenCache(settings.data_folder, settings.cache_bytes)
        teacher = Teacher(self.target_folder, settings.device, settings.teacher_dtype, cache)
        teacher.prepare(self.dataset, self.progress)
        return teacher

    @cached_property
    def output_token_ids(self) -> Tensor | None:
        """The outputs, chosen once; None: all tokens."""
        size = num_outputs(self.settings.output_vocab, self.teacher.config.vocab_size)
        if size is None:
            return None
        path = self.folder / OUTPUTS
        if not path.is_file():
            report = check_pair(self.target_folder, self.target_folder)
            tokenizer = Tokenizer.load(self.target_folder)
            special = tokenizer.special_ids | tokenizer.eos_token_ids
            ids = choose_outputs(size, self.dataset, self.teacher, report.vocab_size, special)
            save_tensors(path, {"output_token_ids": ids}, {})
        return load_tensors(path)[0]["output_token_ids"]

    def new_student(self) -> Student:
        """The student before any training."""
        return build_student(self.settings, self.teacher, self.output_token_ids)

    @cached_property
    def held_out(self) -> list[Measured]:
        """The held-out answers of the evaluations during training."""
        items = self.dataset.held_out
        stride = max(1, len(items) // self.settings.eval_answers)
        return prepare(self.teacher, items[::stride][: self.settings.eval_answers])

    def num_steps(self) -> int:
        """Steps in all."""
        settings = self.settings
        if settings.num_steps is not None:
            return settings.num_steps
        return num_steps_of(
            self.dataset.training,
            settings.batch_tokens,
            settings.seed,
            settings.grad_accumulation,
            settings.epochs,
        )

    def run(self) -> Outcome:
        """Train; goes on from the last checkpoint."""
        self.check_settings()
        began = time.monotonic()
        limit = self.settings.max_minutes
        deadline = None if limit is None else began + 60 * limit
        trainer = self.trainer(self.new_student(), self.dataset, self.num_steps(), self.folder)
        outcome = trainer.run(self.progress, deadline)
        if outcome.is_complete and self.settings.data_curve:
            self._data_curve()
        return outcome

    def trainer(
        self, student: Student, dataset: Dataset, num_steps: int, folder: Path, phase: str = "train"
    ) -> Trainer:
        """A trainer at its last checkpoint, or a fresh one."""
        settings = self.settings
        trainer = Trainer(
            settings, student, self.teacher, dataset, self.held_out, num_steps, folder, phase
        )
        trainer.resume()
        return trainer

    def _data_curve(self) -> None:
        """Short trainings on parts of the data, equally many steps each."""
        num_steps = max(1, self.num_steps() // CURVE_STEPS)
        points = []
        for share in CURVE_SHARES:
            name = f"curve {share:.0%}"
            folder = self.folder / name.replace(" ", "-").rstrip("%")
            part = subset(self.dataset, share)
            trainer = self.trainer(self.new_student(), part, num_steps, folder, name)
            trainer.run(self.progress)
            about = load_tensors(folder / BEST)[1]
            points.append({"answer_tokens": part.num_answer_tokens, "steps": num_steps, **about})
        write_json(self.folder / CURVE, points)

    def best(self) -> Trained:
        """The student of the best checkpoint."""
        self.check_settings()
        student = self.new_student()
        about = load_parameters(self.folder / BEST, student.trained())
        return Trained(student, about)

    def final_figures(self, student: Student) -> dict[str, Figures]:
        """Figures on all held-out answers, in the student's own float32."""
        measured = prepare(self.teacher, self.dataset.held_out)
        return evaluate(student, self.teacher, measured, self.settings.loss)


def num_parameters(student: Student) -> dict[str, int]:
    """Parameters in all, trained, and used for each token (embeddings only look up)."""
    total = sum(p.numel() for p in student.model.parameters())
    looked_up = student.model.get_input_embeddings().weight.numel()
    return {
        "total": total,
        "trained": sum(p.numel() for _, p in student.trained()),
        "per_token": total - looked_up,
    }
