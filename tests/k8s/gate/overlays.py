"""Each overlay, built once a run: the kubectl that is at hand, with no flag."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from scripts.get_kubectl import find_kubectl
from tests.k8s.gate.manifests import Manifests, build

ROOT = Path(__file__).resolve().parents[3]
CRD_FILE = ROOT.parent / "shared" / "k8s" / "ray.io_rayservices.yaml"


@cache
def manifests_of(folder: str) -> Manifests:
    """What ``kubectl kustomize`` makes of a folder under k8s/."""
    return build(find_kubectl(), ROOT / "k8s" / folder)
