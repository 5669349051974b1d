"""kill -9 at random moments, five times: the same answers and the same weights in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.integration.distill.distill_rig import SMALL, run

HELPER = Path(__file__).with_name("killed_runs.py")
NUM_KILLS = 5


def run_killed(folder: Path, target: Path, seed: int, **more: Any) -> None:
    """The same run, killed on its way."""
    values = {**SMALL, **more, "target": str(target), "out": str(folder)}
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(values))
    command = [sys.executable, str(HELPER), str(path), str(seed), str(NUM_KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"num_killed": NUM_KILLS, "status": 0}, done.stderr


def test_answers_after_kills(target: Path, tmp_path: Path) -> None:
    options = {"only": "answers", "num_tokens": 2500, "shard_answers": 8}
    run(target, tmp_path / "whole", **options)
    run_killed(tmp_path / "killed", target, 1, **options)
    whole = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "data").glob("shard-*")}
    killed = {p.name: p.read_bytes() for p in (tmp_path / "killed" / "data").glob("shard-*")}
    assert len(whole) > NUM_KILLS
    common = whole.keys() & killed.keys()  # a run that goes on may stop a shard earlier or later
    assert len(common) >= len(whole) - 2
    assert all(whole[name] == killed[name] for name in common)


def test_weights_after_kills(target: Path, answered: Path, tmp_path: Path) -> None:
    options = {
        **{"only": "train", "data": str(answered), "num_steps": 90, "checkpoint_steps": 3},
        **{"eval_steps": 10, "on_policy_share": 0.5, "grad_accumulation": 2, "loss": "mix"},
        **{"batch_tokens": 512, "eval_answers": 6},
    }
    run(target, tmp_path / "whole", **options)
    run_killed(tmp_path / "killed", target, 2, **options)
    for name in ("checkpoint.safetensors", "best.safetensors"):
        whole = load_file(tmp_path / "whole" / "train" / name)
        killed = load_file(tmp_path / "killed" / "train" / name)
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[key], killed[key]) for key in whole), name
