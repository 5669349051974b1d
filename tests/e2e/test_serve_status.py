"""Ray Serve's own commands: ``serve status`` from another shell, ``serve run`` alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from specdist.bench.served import ROOT, ServedApp
from specdist.client import Client
from tests.e2e.rig import PATIENCE_S, REFERENCES, wait_for

# What ``source .venv/bin/activate`` sets.
ACTIVATED = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
SERVE = str(Path(sys.executable).parent / "serve")
DASHBOARD = re.compile(r"dashboard at \S*?(http://[0-9.]+:\d+)")


def status(dashboard: str) -> dict[str, Any]:
    """What ``serve status`` prints in an activated shell."""
    done = subprocess.run(
        [SERVE, "status", "--address", dashboard],
        env={**os.environ, **ACTIVATED},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def dashboard_of(log: str) -> str:
    """The address that ``serve run`` printed: 8265 unless another cluster has it."""
    found = DASHBOARD.search(log)
    assert found is not None, log[:2000]
    return found.group(1)


def deployment_states(report: dict[str, Any]) -> dict[str, str]:
    """The status of each deployment."""
    deployments = report["applications"]["specdist"]["deployments"]
    return {name: entry["status"] for name, entry in deployments.items()}


def test_status_from_a_second_shell(app: ServedApp) -> None:
    report = status(dashboard_of(app.log()))
    assert report["applications"]["specdist"]["status"] == "RUNNING"
    assert deployment_states(report) == dict.fromkeys(("Router", "Draft", "Target"), "HEALTHY")


@pytest.fixture
def run_alone(tmp_path: Path) -> Iterator[ServedApp]:
    """``serve run`` without the launcher, with a config that has free ports."""
    planned = ServedApp()
    with (tmp_path / "serve.log").open("w") as log:
        child = subprocess.Popen(
            [SERVE, "run", str(planned.config_path)],
            cwd=ROOT,
            env={**os.environ, **ACTIVATED, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield planned
    finally:
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, then what is left of its family."""
    family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
    child.send_signal(signal.SIGINT)
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
    for process in family:
        if process.is_running():
            process.kill()
    psutil.wait_procs(family, timeout=10)


def test_serve_run_alone(run_alone: ServedApp, tmp_path: Path) -> None:
    def ready() -> bool:
        try:
            return run_alone.health()["num_drafts"] == 1
        except OSError:
            return False

    wait_for("serve run", ready, 2 * PATIENCE_S, pause_s=0.5)
    reference = REFERENCES["P-PARIS"]
    with Client(run_alone.grpc_address, timeout_s=PATIENCE_S) as client:
        answer = client.generate(reference.prompt, max_tokens=8, temperature=0)
    assert answer.token_ids == reference.token_ids
    report = status(dashboard_of((tmp_path / "serve.log").read_text()))
    assert set(deployment_states(report).values()) == {"HEALTHY"}
