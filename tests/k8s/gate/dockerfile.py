"""What must hold for docker/Dockerfile, read as text: no container engine is needed.

Knows the few instructions that matter here. hadolint looks at style and common mistakes
beside it.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.k8s.gate.problems import Problem

SUBJECT = "docker/Dockerfile"
FINAL = "serve"
TAG = re.compile(r":(?P<tag>[\w.-]+)(@sha256:[0-9a-f]{64})?$")
FULL_VERSION = re.compile(r"\d+\.\d+\.\d+")
TOOLS = ("ray", "wget", "grep")  # what KubeRay's commands and probes call
ENTRANCES = (
    "deployments.app",
    "deployments.grpc_proxy",
    "specdist.workers.draft_worker",
    "specdist.workers.target_worker",
    "specdist.models.serving",
)


class Instruction(NamedTuple):
    """One instruction, its continuation lines joined."""

    name: str
    value: str


class Stage(NamedTuple):
    """One FROM and what follows it."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]


class Dockerfile(NamedTuple):
    """The arguments before the first FROM, and the stages."""

    arguments: dict[str, str]
    stages: dict[str, Stage]

    def chain(self, name: str) -> list[Instruction]:
        """The instructions of a stage after those of the stages it builds on."""
        stage = self.stages[name]
        before = self.chain(stage.base) if stage.base in self.stages else []
        return [*before, *stage.instructions]


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile; comments and blank lines are dropped."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: dict[str, tuple[str, list[Instruction]]] = {}
    current: list[Instruction] | None = None
    for line in joined.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "FROM":
            base, _, label = value.partition(" AS ")
            current = []
            stages[label or str(len(stages))] = (base, current)
        elif current is None:
            key, _, default = value.partition("=")
            arguments[key] = default
        else:
            current.append(Instruction(name, value))
    return Dockerfile(arguments, {n: Stage(n, b, tuple(i)) for n, (b, i) in stages.items()})


def check_base(dockerfile: Dockerfile) -> list[Problem]:
    """Every image from outside has a tag with a full version, or a digest."""
    found = []
    for stage in dockerfile.stages.values():
        base = stage.base
        for key, value in dockerfile.arguments.items():
            base = base.replace(f"${{{key}}}", value)
        if base in dockerfile.stages:
            continue
        match = TAG.search(base)
        if match is None or not FULL_VERSION.search(match["tag"]):
            message = f"{base!r} must have a tag with a full version"
            found.append(Problem(SUBJECT, f"FROM of {stage.name}", message))
    if list(dockerfile.stages)[-1:] != [FINAL]:
        found.append(Problem(SUBJECT, "FROM", f"{FINAL} must be last: the one built by default"))
    return found


def check_user(dockerfile: Dockerfile) -> list[Problem]:
    """Each image ends as a number above 0: Kubernetes cannot verify a name."""
    found = []
    for name in dockerfile.stages:
        users = [i.value for i in dockerfile.chain(name) if i.name == "USER"]
        last = users[-1] if users else "root"
        if not re.fullmatch(r"[1-9]\d*(:\d+)?", last):
            message = f"must be a number above 0 in the end, got {last!r}"
            found.append(Problem(SUBJECT, f"USER of {name}", message))
    return found


def check_last_run(dockerfile: Dockerfile) -> list[Problem]:
    """The last layer imports what pods import and finds what KubeRay calls, as that user."""
    found = []
    for name in ("demo", FINAL):
        chain = dockerfile.chain(name) if name in dockerfile.stages else []
        runs = [i.value for i in chain if i.name == "RUN"]
        last = runs[-1] if runs else ""
        for module in ENTRANCES:
            if not re.search(rf"\b{re.escape(module)}\b", last):
                found.append(Problem(SUBJECT, f"last RUN of {name}", f"does not import {module}"))
        for tool in TOOLS:
            if not re.search(rf"command -v [\w ]*\b{tool}\b", last):
                found.append(Problem(SUBJECT, f"last RUN of {name}", f"does not look for {tool}"))
        after = [i.name for i in chain[_last_index(chain, "RUN") :]]
        if "COPY" in after or "USER" in after:
            found.append(Problem(SUBJECT, f"last RUN of {name}", "must come after COPY and USER"))
    return found


def _last_index(chain: list[Instruction], name: str) -> int:
    return max((n for n, i in enumerate(chain) if i.name == name), default=len(chain))


def copied(dockerfile: Dockerfile, stage: str) -> list[str]:
    """Sources of each COPY from the build context."""
    found = []
    for instruction in dockerfile.chain(stage):
        if instruction.name in ("COPY", "ADD") and "--from=" not in instruction.value:
            words = [w for w in instruction.value.split() if not w.startswith("--")]
            found += words[:-1]
    return found


def check_copies(dockerfile: Dockerfile, root: Path, ignored: list[str]) -> list[Problem]:
    """What is copied is there and not ignored; what the application imports is copied."""
    sources = copied(dockerfile, FINAL)
    found = []
    for source in {*sources, *copied(dockerfile, "demo")}:
        if not (root / source).exists():
            found.append(Problem(SUBJECT, f"COPY {source}", "is not there"))
        elif is_ignored(source, ignored):
            found.append(Problem(SUBJECT, f"COPY {source}", "is ignored by .dockerignore"))
    for file in first_party_files(root):
        if not any(file == s or file.startswith(f"{s}/") for s in sources):
            found.append(Problem(SUBJECT, "COPY", f"lacks {file}, which the application imports"))
        elif is_ignored(file, ignored):
            found.append(Problem(".dockerignore", file, "is ignored, and the application needs it"))
    if any(source == "models" or source.startswith("models/") for source in sources):
        found.append(Problem(SUBJECT, "COPY models", "no weights belong in the image that serves"))
    return found


def is_ignored(path: str, patterns: list[str]) -> bool:
    """As the builder decides: the last pattern that matches the path or a parent counts."""
    parts = path.split("/")
    names = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    ignored = False
    for pattern in patterns:
        bare = pattern.removeprefix("!").removeprefix("**/")
        if any(fnmatch.fnmatch(name, bare) for name in (*names, *parts)):
            ignored = not pattern.startswith("!")
    return ignored


def first_party_files(root: Path) -> set[str]:
    """Our modules that the application's entrances import, directly or not."""
    waiting, seen = list(ENTRANCES), set()
    while waiting:
        module = waiting.pop()
        file = _file_of(root, module)
        if file is None or str(file.relative_to(root)) in seen:
            continue
        seen.add(str(file.relative_to(root)))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return seen


def _file_of(root: Path, module: str) -> Path | None:
    if module.split(".")[0] not in ("specdist", "deployments"):
        return None
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def check_environment(dockerfile: Dockerfile, wanted: dict[str, str]) -> list[Problem]:
    """The settings with which ``make serve`` starts Ray hold in the image too."""
    text = " ".join(i.value for i in dockerfile.chain(FINAL) if i.name == "ENV")
    there = dict(re.findall(r"(\w+)=(\S+)", text))
    wanted = {**wanted, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "/serve_app"}
    found = [
        Problem(SUBJECT, f"ENV {key}", f"must be {value}, got {there.get(key)!r}")
        for key, value in wanted.items()
        if there.get(key) != value
    ]
    if "NVIDIA_VISIBLE_DEVICES" in there:
        message = "would show every GPU to pods that asked for none"
        found.append(Problem(SUBJECT, "ENV NVIDIA_VISIBLE_DEVICES", message))
    return found


def check_commands(dockerfile: Dockerfile) -> list[Problem]:
    """KubeRay sets the command; pip takes the tested versions and leaves no cache behind."""
    found = []
    for stage in dockerfile.stages.values():
        for instruction in stage.instructions:
            if instruction.name in ("CMD", "ENTRYPOINT"):
                message = "must be left to KubeRay"
                found.append(Problem(SUBJECT, f"{instruction.name} of {stage.name}", message))
            if "pip install" in instruction.value:
                for option in ("-c constraints.txt", "--no-cache-dir"):
                    if option not in instruction.value:
                        found.append(Problem(SUBJECT, "RUN pip install", f"lacks {option}"))
    return found


def run_hadolint(text: str, config: Path) -> list[Problem]:
    """hadolint's findings on a Dockerfile."""
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run(
        [hadolint, "--no-color", "--config", config, "-"],
        input=text,
        capture_output=True,
        text=True,
    )
    lines = [line for line in run.stdout.splitlines() if line.strip()]
    if run.returncode and not lines:
        lines = [run.stderr.strip()]
    return [Problem(SUBJECT, "hadolint", line) for line in lines]
