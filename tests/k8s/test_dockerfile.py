"""docker/Dockerfile by hadolint and by what must hold for it; seeded faults are caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deployments.launch import LIGHT_SETTINGS
from tests.k8s.gate import dockerfile as gate
from tests.k8s.gate.overlays import ROOT
from tests.k8s.gate.problems import Problem

TEXT = (ROOT / "docker" / "Dockerfile").read_text()
IGNORED = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]
CHECKS: dict[str, Callable[[str], list[Problem]]] = {
    "base": lambda text: gate.check_base(gate.parse(text)),
    "user": lambda text: gate.check_user(gate.parse(text)),
    "last run": lambda text: gate.check_last_run(gate.parse(text)),
    "copies": lambda text: gate.check_copies(gate.parse(text), ROOT, IGNORED),
    "environment": lambda text: gate.check_environment(gate.parse(text), LIGHT_SETTINGS),
    "commands": lambda text: gate.check_commands(gate.parse(text)),
    "hadolint": lambda text: gate.run_hadolint(text, ROOT / "docker" / "hadolint.yaml"),
}
BASE = "python:3.11.14-slim-bookworm"
FAULTS = [  # check, what stands there, what the fault makes of it
    ("base", BASE, "python"),
    ("base", BASE, "python:3.11-slim"),
    ("base", BASE, "rayproject/ray:latest"),
    ("base", BASE, "rayproject/ray:2.60.0-gpu\nFROM rayproject/ray:nightly AS other"),
    ("base", "FROM base AS serve", "FROM base AS final"),
    ("user", "USER 1000:100\n\nFROM base AS demo", "USER ray\n\nFROM base AS demo"),
    ("user", "USER 1000:100\nRUN specdist models pull", "RUN specdist models pull"),
    ("user", "USER 1000:100\n\nFROM base AS demo", "FROM base AS demo"),
    ("last run", "deployments.grpc_proxy, ", ""),
    ("last run", "command -v ray wget grep", "command -v ray grep"),
    ("last run", 'specdist.models.serving"\n', 'specdist.models.serving"\nRUN echo done\n'),
    ("copies", "COPY deployments deployments\n", ""),
    ("copies", "COPY specdist specdist", "COPY specdist/api specdist/api"),
    ("copies", "COPY deployments deployments", "COPY deployments models ./"),
    ("copies", "constraints.txt ./", "constraints.txt requirements.lock ./"),
    ("copies", "COPY models models", "COPY tests tests"),
    ("environment", "    RAY_worker_niceness=0 \\\n", ""),
    ("environment", "HF_HUB_OFFLINE=1", "HF_HUB_OFFLINE=0"),
    ("environment", "HF_HUB_OFFLINE=1", "HF_HUB_OFFLINE=1 NVIDIA_VISIBLE_DEVICES=all"),
    ("commands", "-c constraints.txt ", ""),
    ("commands", "--no-cache-dir ", ""),
    ("commands", "FROM base AS serve\n", 'FROM base AS serve\nENTRYPOINT ["ray", "start"]\n'),
    ("hadolint", "--no-install-recommends ", ""),
    ("hadolint", " \\\n    && rm -rf /var/lib/apt/lists/*", ""),
    ("hadolint", "WORKDIR /serve_app", "WORKDIR serve_app"),
    ("hadolint", "COPY specdist specdist", "ADD specdist specdist"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_dockerfile_has_no_problem(check: str) -> None:
    assert [str(problem) for problem in CHECKS[check](TEXT)] == []


@pytest.mark.parametrize(("check", "there", "fault"), FAULTS)
def test_fault_is_caught(check: str, there: str, fault: str) -> None:
    changed = fault.join(TEXT.rsplit(there, 1))
    assert changed != TEXT, "the fault changes nothing"
    assert CHECKS[check](changed) != []


def test_every_check_has_a_fault_that_it_must_see() -> None:
    assert set(CHECKS) == {check for check, _, _ in FAULTS}


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("specdist", False),
        ("specdist/api/openai.py", False),
        ("specdist/api/__pycache__/openai.cpython-311.pyc", True),
        ("pyproject.toml", False),
        ("tests/k8s/test_dockerfile.py", True),
        (".git/config", True),
        (".venv/bin/python", True),
        ("k8s/overlays/prod/serve_config.yaml", True),
    ],
)
def test_only_what_is_copied_reaches_the_builder(path: str, ignored: bool) -> None:
    assert gate.is_ignored(path, IGNORED) is ignored


def test_what_the_application_imports_is_found_by_following_it() -> None:
    files = gate.first_party_files(ROOT)
    assert {
        "deployments/router.py",
        "specdist/api/generated/specdist_pb2_grpc.py",
        "specdist/speculation/rules/coupled.py",
        "specdist/errors.py",
    } <= files
    assert not {f for f in files if f.startswith(("specdist/distill", "specdist/bench"))}


def test_an_ignored_module_is_found() -> None:
    problems = gate.check_copies(gate.parse(TEXT), ROOT, [*IGNORED, "specdist/engine"])
    assert any("specdist/engine" in problem.field for problem in problems)
