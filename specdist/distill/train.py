"""Training: forward KL to the target on its own answers, with checkpoints that resume.

The teacher's logits come from the hidden states stored with the answers. Knows batches and
the student, not where the answers came from. Called by ``specdist.distill.short``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from specdist.distill.data import Batch, Example, collate, epoch_batches
from specdist.distill.student import Student

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run, given the data and the student."""

    num_steps: int = 1000
    batch_size: int = 8  # examples
    learning_rate: float = 1e-3
    min_learning_rate: float = 2e-5
    warmup_steps: int = 20
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    prompt_weight: float = 0.1  # of a prompt token against an answer token
    checkpoint_steps: int = 25
    seed: int = 0


def learning_rate(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine down to ``min_learning_rate``."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.num_steps - config.warmup_steps)
    half_cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return config.min_learning_rate + half_cosine * (
        config.learning_rate - config.min_learning_rate
    )


def distill_loss(student: Student, batch: Batch, teacher_rows: Tensor) -> Tensor:
    """Weighted mean of KL(p || q), p being the target's law restricted to the student's outputs.

    teacher_rows: the target's head at the student's outputs.  # [num_outputs, width]
    """
    used = batch.weights > 0
    weights = batch.weights[used]
    log_q = student.lm_head(student(batch.inputs)[used]).log_softmax(dim=-1)
    with torch.no_grad():
        log_p = (batch.hidden[used] @ teacher_rows.T).log_softmax(dim=-1)
    divergence = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(dim=-1)
    return (divergence * weights).sum() / weights.sum()


class Trainer:
    """A student, its optimizer and a step counter; stops and resumes at any checkpoint."""

    def __init__(
        self,
        student: Student,
        teacher_head: Tensor,
        examples: Sequence[Example],
        config: TrainConfig,
        prefix_len: int,
    ) -> None:
        self.student = student
        self.teacher_rows = teacher_head[student.output_token_ids].detach()
        self.examples = examples
        self.config = config
        self.prefix_len = prefix_len
        self.step = 0
        self.optimizer = torch.optim.AdamW(
            student.trained_parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=True,
        )

    def run(
        self,
        folder: Path,
        on_checkpoint: Callable[[int], None] | None = None,
        until: int | None = None,
    ) -> None:
        """Train to ``until`` (default: the end), with a checkpoint in ``folder`` now and then."""
        end = self.config.num_steps if until is None else min(until, self.config.num_steps)
        self.student.train()
        recent: list[float] = []
        started, first = time.monotonic(), self.step
        batches = self._batches()
        while self.step < end:
            recent.append(self._one_step(next(batches)))
            if self.step % self.config.checkpoint_steps == 0 or self.step == end:
                self.save(folder)
                pace = (time.monotonic() - started) / (self.step - first)
                mean = sum(recent) / len(recent)
                log.info("step %d: loss %.4f, %.2f s a step", self.step, mean, pace)
                recent.clear()
                if on_checkpoint is not None:
                    on_checkpoint(self.step)
                    self.student.train()

    def _batches(self) -> Iterator[list[Example]]:
        """The batches from the current step on, whatever came before it."""
        size, seed = self.config.batch_size, self.config.seed
        per_epoch = math.ceil(len(self.examples) / size)
        epoch, skip = divmod(self.step, per_epoch)
        while True:
            for index, batch in enumerate(epoch_batches(self.examples, size, seed, epoch)):
                if index >= skip:
                    yield batch
            epoch, skip = epoch + 1, 0

    def _one_step(self, examples: Sequence[Example]) -> float:
        batch = collate(examples, self.config.prompt_weight, self.prefix_len)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.config)
        self.optimizer.zero_grad(set_to_none=True)
        loss = distill_loss(self.student, batch, self.teacher_rows)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.student.trained_parameters(), self.config.max_grad_norm
        )
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"gradient norm must be finite, got {norm} in step {self.step}"
            )
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def save(self, folder: Path) -> None:
        """Write ``checkpoint.safetensors``: parameters, optimizer moments, step."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / "checkpoint.partial"
        save_file(self._tensors(), partial, metadata={"step": str(self.step)})
        partial.replace(folder / "checkpoint.safetensors")

    def resume(self, folder: Path) -> bool:
        """Go on from the checkpoint in ``folder``; False when there is none."""
        path = folder / "checkpoint.safetensors"
        if not path.exists():
            return False
        tensors = load_file(path)
        ids = tensors["output_token_ids"]
        if not torch.equal(ids, self.student.output_token_ids):
            raise ValueError(f"{path} has another output vocabulary than this student")
        state: dict[str, Any] = {"state": {}}
        with torch.no_grad():
            for index, (name, parameter) in enumerate(self._named()):
                parameter.copy_(tensors[f"parameter.{name}"])
                state["state"][index] = {
                    key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
                }
        state["param_groups"] = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(state)
        self.step = int(tensors["trainer_step"])
        return True

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(n, p) for n, p in self.student.named_parameters() if p.requires_grad]

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {
            "output_token_ids": self.student.output_token_ids,
            "trainer_step": torch.tensor(self.step),
        }
        for name, parameter in self._named():
            tensors[f"parameter.{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors
