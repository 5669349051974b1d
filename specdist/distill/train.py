"""Phase 3: the student learns the target's laws, with checkpoints that resume exactly.

Every random choice is a function of (seed, step), so in float32 an interrupted training
ends with the weights of an uninterrupted one. Knows batches, student and teacher; not where
the answers came from. Called by ``training``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdist.distill.agreement import Measured, describe, evaluate
from specdist.distill.batches import Batch, batches_from, make_batch
from specdist.distill.checkpoints import (
    BEST,
    CHECKPOINT,
    load_training,
    save_tensors,
    save_training,
)
from specdist.distill.dataset import Dataset, Item
from specdist.distill.files import read_rows, write_rows
from specdist.distill.losses import loss_rows
from specdist.distill.on_policy import extend
from specdist.distill.progress import Progress
from specdist.distill.settings import DistillSettings
from specdist.distill.student import Student
from specdist.distill.teacher import Teacher
from specdist.engine.dtypes import resolve_dtype
from specdist.errors import ModelError

LOG = "log.jsonl"
LOWEST_RATE = 0.02  # of the highest learning rate, at the end
BATCHES, PROMPTS, OWN = 0, 1, 2  # uses of random numbers, kept apart


@dataclass(frozen=True)
class Outcome:
    """How a call of ``run`` ended."""

    step: int
    is_complete: bool


def learning_rate(step: int, settings: DistillSettings, num_steps: int) -> float:
    """Linear warm-up, then a cosine."""
    highest, warmup = settings.learning_rate, min(settings.warmup_steps, num_steps // 2)
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / max(1, num_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return highest * (LOWEST_RATE + (1 - LOWEST_RATE) * cosine)


class Trainer:
    """A student, its optimizer and a step counter."""

    def __init__(
        self,
        settings: DistillSettings,
        student: Student,
        teacher: Teacher,
        dataset: Dataset,
        held_out: Sequence[Measured],
        num_steps: int,
        folder: Path,
        phase: str = "train",
    ) -> None:
        self.settings, self.student, self.teacher = settings, student, teacher
        self.dataset, self.num_steps = dataset, num_steps
        self._held_out, self._folder, self._phase = held_out, folder, phase
        self.step = 0
        self.num_tokens = 0  # trained on so far, prompts included, padding not
        self.best_loss = math.inf
        self.log: list[dict[str, Any]] = []
        self._recent: list[float] = []
        self._named = student.trained()
        number = resolve_dtype(settings.train_dtype, teacher.device)
        self._autocast = torch.autocast(
            teacher.device.type, torch.bfloat16, enabled=number == torch.bfloat16
        )
        self.optimizer = torch.optim.AdamW(
            [p for _, p in self._named],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    # -- the loop -----------------------------------------------------------------------

    def run(self, progress: Progress, deadline: float | None = None) -> Outcome:
        """Train to the end, or to a checkpoint once ``deadline`` (monotonic) has passed."""
        settings, began = self.settings, self.num_tokens
        first = time.monotonic()
        self.student.train()
        batches = self._batches()
        if not self.log:
            self._evaluate(progress)  # where it begins
        self._tell(progress, first, began)
        while self.step < self.num_steps:
            self._recent.append(self._one_step([next(batches) for _ in range(self._accumulation)]))
            is_late = deadline is not None and time.monotonic() > deadline
            ends = self.step == self.num_steps or is_late
            if self.step % settings.eval_steps == 0 or self.step == self.num_steps:
                self._evaluate(progress)
            if ends or self.step % settings.checkpoint_steps == 0:
                self.save()
            self._tell(progress, first, began)
            if is_late:
                break
        return Outcome(self.step, self.step == self.num_steps)

    @property
    def _accumulation(self) -> int:
        return self.settings.grad_accumulation

    def _batches(self) -> Iterator[list[Item]]:
        done = self.step * self._accumulation
        return batches_from(
            self.dataset.training, self.settings.batch_tokens, self.settings.seed, done
        )

    def _rng(self, use: int, micro: int) -> np.random.Generator:
        return np.random.default_rng((self.settings.seed, self.step, use, micro))

    def _one_step(self, groups: Sequence[list[Item]]) -> float:
        settings = self.settings
        made = [self._make_batch(group, micro) for micro, group in enumerate(groups)]
        num_positions = sum(len(batch.rows) for batch in made)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, settings, self.num_steps)
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch in made:
            loss = self._loss_sum(batch) / num_positions
            loss.backward()
            total += float(loss.detach())
        parameters = [p for _, p in self._named]
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
        if not torch.isfinite(norm):
            raise ModelError(
                f"step {self.step}: the gradient's norm is {float(norm)}; the checkpoint before "
                "it is kept: lower learning_rate, or use train_dtype float32"
            )
        self.optimizer.step()
        self.step += 1
        self.num_tokens += sum(len(i.example.tokens) for group in groups for i in group)
        return total

    def _make_batch(self, items: Sequence[Item], micro: int) -> Batch:
        if self._is_on_policy(micro):
            with self._autocast:
                items = extend(
                    self.student, items, self.settings.on_policy_tokens, self._rng(OWN, micro)
                )
            states = self.teacher.compute([item.example.tokens for item in items])
        else:
            states = self.teacher.states_of(items)
        share, rng = self.settings.prompt_weight, self._rng(PROMPTS, micro)
        return make_batch(items, states, self.dataset.prefix_len, share, rng)

    def _is_on_policy(self, micro: int) -> bool:
        if self.step < self.settings.on_policy_start * self.num_steps:
            return False
        return bool(self._rng(BATCHES, micro).random() < self.settings.on_policy_share)

    def _loss_sum(self, batch: Batch) -> Tensor:
        device = self.teacher.device
        with self._autocast:
            states = self.student.states(batch.inputs.to(device))
            mine = self.student.logits(states[batch.rows.to(device), batch.columns.to(device)])
        theirs = self.teacher.logits(batch.states.to(device), self.student.output_token_ids)
        progress = self.step / self.num_steps
        return loss_rows(self.settings.loss, mine, theirs, progress).sum()

    # -- what is kept -------------------------------------------------------------------

    def _evaluate(self, progress: Progress) -> None:
        with self._autocast:
            figures = evaluate(self.student, self.teacher, self._held_out, self.settings.loss)
        self.log.append({"step": self.step, "tokens": self.num_tokens, "figures": figures})
        note = f"step {self.step}: {describe(figures['all'])}"
        progress(self._phase, self.step, self.num_steps, "steps", note)
        if figures["all"]["loss"] < self.best_loss:
            self.best_loss = figures["all"]["loss"]
            tensors = {f"parameter.{n}": p for n, p in self._named}
            about = {"step": self.step, "tokens": self.num_tokens, "figures": figures}
            save_tensors(self._folder / BEST, tensors, about)

    def _tell(self, progress: Progress, first: float, began: int) -> None:
        rate = (self.num_tokens - began) / max(1e-9, time.monotonic() - first)
        loss = f", loss {np.mean(self._recent[-20:]):.3f}" if self._recent else ""
        unit = "steps" if not loss else f"steps ({rate:,.0f} tokens/s{loss})"
        progress(self._phase, self.step, self.num_steps, unit)

    def save(self) -> None:
        """Write the checkpoint, and the log up to it."""
        if self._recent:
            mean = float(np.mean(self._recent))
            self.log.append({"step": self.step, "tokens": self.num_tokens, "loss": mean})
            self._recent.clear()
        about = {"step": self.step, "tokens": self.num_tokens, "best_loss": self.best_loss}
        write_rows(self._folder / LOG, self.log)
        save_training(self._folder / CHECKPOINT, self._named, self.optimizer, about)

    def resume(self) -> bool:
        """Go on from the checkpoint; False when there is none."""
        about = load_training(self._folder / CHECKPOINT, self._named, self.optimizer)
        if about is None:
            return False
        self.step, self.num_tokens = about["step"], about["tokens"]
        self.best_loss = about["best_loss"]
        self.log = [r for r in read_rows(self._folder / LOG) if r["step"] <= self.step]
        return True
