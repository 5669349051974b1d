"""``--dry-run``: what a run would make, and how long it would take on this machine.

Loads the target, decodes a few steps and trains one step on random tokens; writes nothing.
Called by ``pipeline``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdist.distill.answering import Ask
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.losses import loss_rows
from specdist.distill.output_vocab import num_outputs
from specdist.distill.pool import count_sources
from specdist.distill.settings import DistillSettings
from specdist.distill.student import Student, build_student
from specdist.distill.target_engine import open_target
from specdist.distill.teacher import Teacher
from specdist.distill.training import num_parameters
from specdist.engine.dtypes import resolve_dtype

PROMPT_LEN = 64
DECODE_STEPS = 4
TOKENS_PER_ANSWER_TOKEN = 2.0  # prompts included, as a rule of thumb for the built-in mix
ROW_LEN = 256


def estimate(settings: DistillSettings, target_folder: Path) -> dict[str, Any]:
    """Sizes, work per token and times."""
    rate = _answer_rate(settings, target_folder)
    cache = HiddenCache(settings.data_folder, 0)
    teacher = Teacher(target_folder, settings.device, settings.teacher_dtype, cache)
    student = build_student(settings, teacher, _some_outputs(settings, teacher))
    sizes = num_parameters(student)
    step_s = _step_seconds(settings, teacher, student)
    total_tokens = settings.num_tokens * TOKENS_PER_ANSWER_TOKEN
    step_tokens = settings.batch_tokens * settings.grad_accumulation
    num_steps = settings.num_steps or round(settings.epochs * total_tokens / step_tokens) or 1
    target_size = sum(p.numel() for p in teacher.model.parameters())
    states_bytes = round(total_tokens * teacher.width * 2)
    return {
        "prompt_files": count_sources(settings),
        "target_parameters": target_size,
        "student_parameters": sizes["total"],
        "student_trained_parameters": sizes["trained"],
        "student_bytes_bf16": 2 * sizes["total"],
        "student_slim_bytes_bf16": 2 * sizes["per_token"],
        "student_flops_per_token": 2 * sizes["per_token"],
        "target_flops_per_token": 2 * target_size,
        "states_bytes": min(states_bytes, settings.cache_bytes),
        "answer_tokens_per_s": round(rate, 1),
        "answers_hours": round(settings.num_tokens / rate / 3600, 2),
        "train_tokens_per_s": round(step_tokens / step_s, 1),
        "train_steps": num_steps,
        "train_hours": round(num_steps * step_s / 3600, 2),
    }


def _some_outputs(settings: DistillSettings, teacher: Teacher) -> torch.Tensor | None:
    """As many outputs as the settings ask for; which ones, only the answers can tell."""
    rows = teacher.config.vocab_size
    size = num_outputs(settings.output_vocab, rows)
    return None if size is None else torch.arange(min(rows, size))


def _answer_rate(settings: DistillSettings, target_folder: Path) -> float:
    """Answer tokens a second in a full batch, prompts' share not counted."""
    target = open_target(target_folder, settings)
    rng = np.random.default_rng(0)
    length = min(PROMPT_LEN, target.max_prompt_tokens)
    for number in range(settings.batch_size):
        tokens = rng.integers(target.vocab_size, size=length).tolist()
        target.answering.open(Ask(str(number), tokens, 1.0, 1 << 20, number))
    began = time.monotonic()
    steps = 0
    while steps < DECODE_STEPS and target.answering.num_open:
        target.answering.step()
        if not target.answering.is_prefilling:
            began = began if steps else time.monotonic()
            steps += 1
    seconds = time.monotonic() - began
    return settings.batch_size * max(1, steps - 1) / max(seconds, 1e-6)


def _step_seconds(settings: DistillSettings, teacher: Teacher, student: Student) -> float:
    """Time of forward, loss and backward of one step; the second of two."""
    length = min(ROW_LEN, settings.batch_tokens, teacher.config.max_position_embeddings)
    rows = max(1, settings.batch_tokens // length)
    inputs = torch.zeros(rows, length, dtype=torch.int64, device=teacher.device)
    used = inputs.numel() // 2  # about half of all tokens are answers
    states = torch.zeros(used, teacher.width, device=teacher.device)
    number = resolve_dtype(settings.train_dtype, teacher.device)
    for _ in range(2):
        began = time.monotonic()
        autocast = torch.autocast(teacher.device.type, torch.bfloat16)
        with autocast if number == torch.bfloat16 else torch.enable_grad():
            mine = student.logits(student.states(inputs).flatten(0, 1)[:used])
        theirs = teacher.logits(states, student.output_token_ids)
        loss_rows(settings.loss, mine, theirs, 0.5).mean().backward()
        seconds = time.monotonic() - began
    return seconds * settings.grad_accumulation
