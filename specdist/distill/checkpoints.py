"""Where a training stands, on disk: parameters, optimizer, step; safetensors, never pickle.

A checkpoint replaces the one before it only when it is whole, so that a kill at any moment
leaves one from which training goes on to the same weights. Called by ``train`` and ``training``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdist.distill.files import written_whole
from specdist.errors import ConfigError

CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
Named = list[tuple[str, torch.nn.Parameter]]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """The tensors with a note as a file."""
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with written_whole(path) as partial:
        save_file(ready, partial, metadata={"specdist": json.dumps(about, sort_keys=True)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and what was noted with them."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("specdist", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def save_training(
    path: Path, named: Named, optimizer: torch.optim.Optimizer, about: dict[str, Any]
) -> None:
    """Parameters with their moments."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in named:
        tensors[f"parameter.{name}"] = parameter
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    save_tensors(path, tensors, about)


@torch.no_grad()
def load_training(
    path: Path, named: Named, optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Take a checkpoint up; returns what was noted, None when there is no checkpoint."""
    if not path.is_file():
        return None
    tensors, about = load_tensors(path)
    state: dict[int, dict[str, Tensor]] = {}
    for index, (name, parameter) in enumerate(named):
        load_parameter(tensors, f"parameter.{name}", parameter, path)
        if f"step.{name}" in tensors:
            state[index] = {key: tensors[f"{key}.{name}"] for key in MOMENTS}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return about


@torch.no_grad()
def load_parameters(path: Path, named: Named) -> dict[str, Any]:
    """Take the parameters alone; returns what was noted with them."""
    tensors, about = load_tensors(path)
    for name, parameter in named:
        load_parameter(tensors, f"parameter.{name}", parameter, path)
    return about


def load_parameter(
    tensors: dict[str, Tensor], name: str, parameter: torch.nn.Parameter, path: Path
) -> None:
    """Copy one tensor; ConfigError when the file does not fit the student."""
    value = tensors.get(name)
    if value is None or value.shape != parameter.shape:
        there = None if value is None else tuple(value.shape)
        raise ConfigError(f"{path}: {name} must be {tuple(parameter.shape)}, got {there}")
    parameter.copy_(value)
