"""Collects what a finished run was: the content of provenance.json.

Everything needed to judge the draft or to make it again: command, versions, hashes of data
and weights, settings, figures, times. Called by ``pipeline`` at the end; the texts made of
it are in ``model_card`` and ``report``.
"""

from __future__ import annotations

import dataclasses
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import safetensors
import tokenizers
import torch
import transformers

from specdist.distill.dataset import SNAPSHOT
from specdist.distill.files import model_digest, read_json_file, read_rows
from specdist.distill.settings import DistillSettings, flag_of
from specdist.distill.student import layer_numbers
from specdist.distill.train import LOG
from specdist.distill.training import CURVE, Trained, Training, num_parameters
from specdist.models.cache import file_sha256
from specdist.models.pair import PairReport

if TYPE_CHECKING:
    from specdist.distill.pipeline import Pipeline

PROVENANCE = "provenance.json"
NOT_OPTIONS = {"dry_run", "only"}


def describe_run(
    run: Pipeline, trained: Trained, report: PairReport, folders: Sequence[Path]
) -> dict[str, Any]:
    """All that is known about a run, as plain data."""
    settings, training = run.settings, run.training
    path = training.folder / LOG  # written with the first checkpoint
    log = read_rows(path) if path.is_file() else []
    losses, evaluations = ([r for r in log if name in r] for name in ("loss", "figures"))
    curve = training.folder / CURVE
    return {
        "command": command_line(settings),
        "versions": versions(),
        "target": {
            "name": settings.target_name or settings.target,
            "digest": model_digest(run.target_folder),
        },
        "settings": settings.part(tuple(f.name for f in dataclasses.fields(settings))),
        "data": _data(run, training),
        "student": _student(training, trained),
        "training": {
            "step": max((row["step"] for row in log), default=0),
            "tokens": max((row["tokens"] for row in log), default=0),
            "best_step": trained.about["step"],
        },
        "curve": evaluations,
        "losses": losses,
        "data_curve": read_json_file(curve) if curve.is_file() else [],
        "seconds": run.seconds,
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
        "shards_sha256": read_json_file(training.folder / SNAPSHOT),
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


def command_line(settings: DistillSettings) -> str:
    """The command that repeats the run: every option that is not the default."""
    parts = ["specdist distill"]
    for entry in dataclasses.fields(settings):
        value = getattr(settings, entry.name)
        if value == entry.default or entry.name in NOT_OPTIONS:
            continue
        flag = flag_of(entry)
        if value is True:
            parts.append(flag)
        elif isinstance(value, tuple) and value and isinstance(value[0], str):
            parts += [f"{flag} {shlex.quote(v)}" for v in value]
        else:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            parts.append(f"{flag} {shlex.quote(str(shown))}")
    return " ".join(parts)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every weights file of a folder."""
    return {p.name: file_sha256(p) for p in sorted(folder.glob("*.safetensors"))}


def versions() -> dict[str, str]:
    """Versions of what the result depends on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for module in (transformers, tokenizers, safetensors, numpy):
        found[module.__name__] = module.__version__
    return found
