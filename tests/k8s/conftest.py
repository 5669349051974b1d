"""The production overlay, and the check by KubeRay's CRD where that is at hand."""

from __future__ import annotations

import warnings

import pytest

from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.overlays import CRD_FILE, manifests_of
from tests.k8s.gate.problems import Check
from tests.k8s.gate.schemas import rayservice_check


@pytest.fixture(scope="session")
def prod() -> Manifests:
    """The overlay that the seeded faults are put into: it has every component."""
    return manifests_of("overlays/prod")


@pytest.fixture(scope="session")
def crd_check() -> Check:
    """The check of RayService by KubeRay's CRD; tests skip, and warn, without the file."""
    if not CRD_FILE.is_file():
        message = f"RayService is NOT checked by KubeRay's CRD: {CRD_FILE} is absent"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    return rayservice_check(CRD_FILE)
