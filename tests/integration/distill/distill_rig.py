"""Small runs of the distillation, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdist.distill.pipeline import Pipeline
from specdist.distill.settings import DistillSettings

SMALL: dict[str, Any] = {
    "num_threads": 1,
    "dtype": "float32",
    "train_dtype": "float32",
    "teacher_dtype": "float32",
    "num_tokens": 600,
    "batch_size": 16,
    "shard_answers": 32,
    "max_new_tokens": (8, 24),
    "max_prompt_tokens": 160,
    "max_turn_tokens": 16,
    "held_out": 0.2,
    "batch_tokens": 1024,
    "layers": (0, 1),
    "num_steps": 6,
    "warmup_steps": 2,
    "checkpoint_steps": 3,
    "eval_steps": 3,
}


def settings_for(target: Path, out: Path, **more: Any) -> DistillSettings:
    """Settings of a run of a few seconds."""
    return DistillSettings(target=str(target), out=str(out), **{**SMALL, **more})


def run(target: Path, out: Path, **more: Any) -> Pipeline:
    """A whole small run, or a phase of it; returns the pipeline."""
    pipeline = Pipeline(settings_for(target, out, **more))
    pipeline.run()
    return pipeline
