"""Seeded faults: each is one mistake that somebody could make, and the gate must see it.

A fault is caught when the check that is named finds a problem in the changed objects; the
unchanged ones have none (test_manifests).
"""

from __future__ import annotations

import pytest

from tests.k8s.gate import faults_cluster, faults_running
from tests.k8s.gate.checks import CHECKS
from tests.k8s.gate.faults import Broken, Fault
from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.problems import Check

FAULTS = faults_cluster.FAULTS + faults_running.FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.caught_by}: {fault.what}")
def test_fault_is_caught(fault: Fault, prod: Manifests) -> None:
    broken = Broken(prod)
    fault.change(broken)
    assert broken.documents != list(prod.documents), "the fault changes nothing"
    problems = CHECKS[fault.caught_by](broken.manifests())
    assert problems, f"{fault.what} is not caught by {fault.caught_by!r}"
    assert all(problem.subject and problem.field and problem.message for problem in problems)


@pytest.mark.parametrize("fault", faults_cluster.SHAPE_FAULTS, ids=lambda fault: fault.what)
def test_wrong_shape_is_caught(fault: Fault, prod: Manifests, crd_check: Check) -> None:
    broken = Broken(prod)
    fault.change(broken)
    assert crd_check(broken.manifests())


def test_every_check_has_a_fault_that_it_must_see() -> None:
    assert sorted(set(CHECKS) - {fault.caught_by for fault in FAULTS}) == []
