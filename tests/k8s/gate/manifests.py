"""What kustomize makes of an overlay, and short ways to the parts that the checks look at.

Knows the shape of a RayService, not what is right in it. Used by every check.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

SUFFIXES = {"m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)
}
QUANTITY = re.compile(r"([0-9.]+)([a-zA-Z]*)")
DURATION = re.compile(r"([0-9.]+)(h|m|s|ms)")
UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
SLOT_SUFFIX = "_slot"


def quantity(text: object) -> Decimal:
    """A Kubernetes quantity as a number: 500m -> 0.5, 2Gi -> 2147483648."""
    match = QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in ("", *SUFFIXES):
        raise ValueError(f"not a quantity: {text!r}")
    return Decimal(match[1]) * SUFFIXES.get(match[2], 1)


def seconds(text: object) -> float:
    """A Go duration (1h30m) or a number of seconds."""
    if str(text).isdigit():
        return float(str(text))
    if not re.fullmatch(rf"({DURATION.pattern})+", str(text)):
        raise ValueError(f"not a duration: {text!r}")
    return sum(float(number) * UNIT_S[unit] for number, unit in DURATION.findall(str(text)))


@dataclass(frozen=True)
class Group:
    """The head group or one worker group."""

    name: str
    field: str  # where it stands in the RayService
    spec: dict[str, Any]

    @property
    def is_head(self) -> bool:
        return self.name == "head"

    @property
    def pod(self) -> dict[str, Any]:
        pod: dict[str, Any] = self.spec["template"]["spec"]
        return pod

    @property
    def container(self) -> dict[str, Any]:
        """Ray's container is the first one."""
        container: dict[str, Any] = self.pod["containers"][0]
        return container

    @property
    def environment(self) -> dict[str, str]:
        return {entry["name"]: entry.get("value", "") for entry in self.container.get("env", [])}

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}

    @property
    def resources(self) -> dict[str, Decimal]:
        """The Ray resources that the group offers."""
        return {key: quantity(value) for key, value in self.spec.get("resources", {}).items()}

    @property
    def limits(self) -> dict[str, Decimal]:
        limits = self.container.get("resources", {}).get("limits", {})
        return {key: quantity(value) for key, value in limits.items()}


@dataclass(frozen=True)
class Manifests:
    """All objects of one overlay."""

    documents: tuple[dict[str, Any], ...]

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [d for d in self.documents if d["kind"] in kinds]

    @property
    def rayservice(self) -> dict[str, Any]:
        (service,) = self.of_kind("RayService")
        return service

    @property
    def cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = self.rayservice["spec"]["rayClusterConfig"]
        return cluster

    @property
    def head(self) -> Group:
        return Group("head", "rayClusterConfig.headGroupSpec", self.cluster["headGroupSpec"])

    @property
    def workers(self) -> list[Group]:
        return [
            Group(
                spec["groupName"], f"rayClusterConfig.workerGroupSpecs[{spec['groupName']}]", spec
            )
            for spec in self.cluster["workerGroupSpecs"]
        ]

    @property
    def groups(self) -> list[Group]:
        return [self.head, *self.workers]

    def worker(self, name: str) -> Group | None:
        return next((group for group in self.workers if group.name == name), None)

    @cached_property
    def serve(self) -> dict[str, Any]:
        """The Serve config, which travels as a string."""
        config = yaml.safe_load(self.rayservice["spec"].get("serveConfigV2") or "{}")
        return config if isinstance(config, dict) else {}

    @property
    def deployments(self) -> dict[str, dict[str, Any]]:
        """The deployments of the Serve config by name."""
        applications = self.serve.get("applications") or []
        return {d["name"]: d for app in applications for d in app.get("deployments") or []}

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``build_app`` is given."""
        applications = self.serve.get("applications") or [{}]
        return applications[0].get("args") or {}

    def pods(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(object, field, pod spec) of everything that becomes a pod."""
        for group in self.groups:
            yield "RayService/specdist", f"{group.field}.template.spec", group.pod
        for document in self.of_kind("Deployment", "StatefulSet", "Job", "DaemonSet"):
            pod = document["spec"]["template"]["spec"]
            yield f"{document['kind']}/{document['metadata']['name']}", "spec.template.spec", pod


def read(text: str) -> Manifests:
    """Manifests from the YAML that kustomize prints."""
    return Manifests(tuple(d for d in yaml.load_all(text, yaml.CSafeLoader) if d))


def build(kubectl: Path, folder: Path) -> Manifests:
    """Run ``kubectl kustomize``, with no flag, as ``kubectl apply -k`` does."""
    run = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
    if run.returncode:
        raise AssertionError(f"kubectl kustomize {folder} failed: {run.stderr.strip()}")
    return read(run.stdout)


def slots(resources: Mapping[str, Any]) -> list[str]:
    """The names of those resources that bind a replica to its group."""
    return [name for name in resources if name.endswith(SLOT_SUFFIX)]
