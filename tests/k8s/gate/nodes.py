"""Do pods find their nodes: selectors, taints, kinds of capacity, room for an upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.k8s.gate.manifests import Group, Manifests, quantity, seconds
from tests.k8s.gate.problems import Problem, name_of

SUBJECT = "RayService/specdist"
POOL = "specdist.dev/pool"
CAPACITY = "karpenter.sh/capacity-type"
GPU = "nvidia.com/gpu"


def check_gpu_nodes(manifests: Manifests) -> list[Problem]:
    """Pods with a GPU choose their pool and tolerate its taint; no other pod goes there."""
    found = []
    for group in manifests.groups:
        pool = group.pod.get("nodeSelector", {}).get(POOL)
        has_gpu = GPU in group.limits
        field = f"{group.field}.template.spec"
        if has_gpu and pool != group.name:
            message = f"must be {group.name!r}: a small and a large GPU count alike, got {pool!r}"
            found.append(Problem(SUBJECT, f"{field}.nodeSelector.{POOL}", message))
        if has_gpu and not _tolerates(group.pod, POOL, group.name):
            message = f"does not tolerate {POOL}={group.name}"
            found.append(Problem(SUBJECT, f"{field}.tolerations", message))
        if has_gpu and not _tolerates(group.pod, GPU, ""):
            found.append(Problem(SUBJECT, f"{field}.tolerations", f"does not tolerate {GPU}"))
        if not has_gpu and group.pod.get("tolerations"):
            message = "has no GPU and must not fill GPU nodes"
            found.append(Problem(SUBJECT, f"{field}.tolerations", message))
    return found


def _tolerates(pod: Mapping[str, Any], key: str, value: str) -> bool:
    return any(
        t.get("key") == key and (t.get("operator") == "Exists" or t.get("value", "") == value)
        for t in pod.get("tolerations", [])
    )


def _requirement(pool: Mapping[str, Any], key: str) -> set[str]:
    for requirement in pool["spec"]["template"]["spec"]["requirements"]:
        if requirement["key"] == key and requirement["operator"] == "In":
            return set(requirement["values"])
    return set()


def check_node_pools(manifests: Manifests) -> list[Problem]:
    """Where node pools are given: each selector has one, spot is for drafts alone."""
    pools = {
        p["spec"]["template"]["metadata"]["labels"][POOL]: p for p in manifests.of_kind("NodePool")
    }
    if not pools:
        return []
    found = []
    for group in manifests.groups:
        name = group.pod.get("nodeSelector", {}).get(POOL)
        if name not in pools:
            field = f"{group.field}.template.spec.nodeSelector.{POOL}"
            found.append(Problem(SUBJECT, field, f"no NodePool offers {name!r}"))
            continue
        pool = pools[name]
        found += _fits(pool, group)
    for name, pool in pools.items():
        kinds = _requirement(pool, CAPACITY)
        if name != "draft" and kinds != {"on-demand"}:
            message = f"must be on-demand only, got {', '.join(sorted(kinds))}"
            found.append(
                Problem(name_of(pool), f"spec.template.spec.requirements.{CAPACITY}", message)
            )
    return found


def _fits(pool: dict[str, Any], group: Group) -> list[Problem]:
    """The pool has room for the group at its most beside its least, and time for its drain."""
    found = []
    taints = pool["spec"]["template"]["spec"].get("taints", [])
    for taint in taints:
        if not _tolerates(group.pod, taint["key"], taint.get("value", "")):
            message = f"{group.name} pods do not tolerate {taint['key']}"
            found.append(Problem(name_of(pool), "spec.template.spec.taints", message))
    if GPU in group.limits and not taints:
        message = "a GPU pool without a taint fills with pods that need none"
        found.append(Problem(name_of(pool), "spec.template.spec.taints", message))
    if GPU in group.limits:
        needed = group.limits[GPU] * (group.spec["maxReplicas"] + group.spec["minReplicas"])
        limit = quantity(pool["spec"].get("limits", {}).get(GPU, Decimal("inf")))
        if limit < needed:
            message = f"must hold {needed} GPUs while an upgrade runs two clusters, got {limit}"
            found.append(Problem(name_of(pool), f"spec.limits.{GPU}", message))
    patience = pool["spec"]["template"]["spec"].get("terminationGracePeriod")
    grace_s = group.pod.get("terminationGracePeriodSeconds", 30)
    if patience is not None and seconds(patience) <= grace_s:
        message = f"must exceed the {grace_s} s of {group.name} pods, got {patience}"
        field = "spec.template.spec.terminationGracePeriod"
        found.append(Problem(name_of(pool), field, message))
    return found
