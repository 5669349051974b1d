"""Collects what a finished run was: the content of provenance.json.

Called by ``pipeline`` at the end; the texts made of it are in ``record`` and ``report``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdist.distill.files import model_digest, read_json_file
from specdist.distill.record import command_line, hashes, read_log
from specdist.distill.train import LOG
from specdist.distill.training import (
    CURVE,
    Trained,
    Training,
    num_parameters,
    settings_for_record,
    versions,
)
from specdist.models.pair import PairReport

if TYPE_CHECKING:
    from specdist.distill.pipeline import Pipeline


def describe_run(
    run: Pipeline, trained: Trained, report: PairReport, folders: Sequence[Path]
) -> dict[str, Any]:
    """All that is known about a run, as plain data."""
    settings, training = run.settings, run.training
    losses, evaluations = read_log(training.folder / LOG)
    curve, times = training.folder / CURVE, settings.out_folder / "times.json"
    return {
        "command": command_line(settings),
        "versions": versions(),
        "target": {
            "name": settings.target_name or settings.target,
            "digest": model_digest(run.target_folder),
        },
        "settings": settings_for_record(settings),
        "data": _data(run, training),
        "student": _student(training, trained),
        "training": {
            "step": max((row["step"] for row in (*losses, *evaluations)), default=0),
            "tokens": max((row["tokens"] for row in (*losses, *evaluations)), default=0),
            "best_step": trained.about["step"],
        },
        "curve": evaluations,
        "losses": losses,
        "data_curve": read_json_file(curve) if curve.is_file() else [],
        "seconds": read_json_file(times) if times.is_file() else {},
        "pair": dataclasses.asdict(report),
        "draft_sha256": {folder.name: hashes(folder) for folder in folders},
    }


def _data(run: Pipeline, training: Training) -> dict[str, Any]:
    dataset, pool = training.dataset, run.pool_record
    items = dataset.training
    return {
        "answers": len(items),
        "answer_tokens": dataset.num_answer_tokens,
        "tokens": dataset.num_tokens,
        "held_out": len(dataset.held_out),
        "greedy_share": sum(i.example.temperature == 0 for i in items) / len(items),
        "shards_sha256": read_json_file(training.folder / "data.json"),
        "sources": [source["path"] for source in pool["sources"]],
        "exclude": list(pool["exclude"]),
        "prompt_files": pool,
    }


def _student(training: Training, trained: Trained) -> dict[str, Any]:
    student, settings = trained.student, training.settings
    config = student.config.get_text_config()
    if settings.start_from is not None:
        origin = f"the checkpoint {Path(settings.start_from).name}"
    elif settings.new is not None:
        origin = "fresh weights"
    else:
        from specdist.distill.student import layer_numbers

        numbers = layer_numbers(settings, training.teacher.config)
        origin = f"layers {', '.join(map(str, numbers))} of the target"
    frozen = student.has_target_embeddings
    return {
        "family": type(student.model).__name__,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "parameters": num_parameters(student),
        "outputs": student.num_outputs,
        "vocab": config.vocab_size,
        "origin": origin,
        "embeddings": "the target's, frozen" if frozen else "its own",
    }
