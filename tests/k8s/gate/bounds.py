"""Do the numbers agree: replicas against pods, replicas against their pods' resources.

A limit stands in two places, in the Serve config and in the pod groups. Where they differ,
replicas wait for pods that nobody makes, or pods wait for replicas that nobody starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from specdist.config import AppConfig
from specdist.errors import ConfigError
from tests.k8s.gate.manifests import Group, Manifests
from tests.k8s.gate.placement import GROUPS
from tests.k8s.gate.problems import Problem

SUBJECT = "RayService/specdist"
GPU = "nvidia.com/gpu"
MODELS = {"Draft": "draft", "Target": "target"}


def _pairs(manifests: Manifests) -> list[tuple[str, Mapping[str, Any], Group]]:
    """(deployment, its settings, its group) of those that both are there."""
    found = []
    for name, group_name in GROUPS.items():
        group, deployment = manifests.worker(group_name), manifests.deployments.get(name)
        if group is not None and deployment is not None:
            found.append((name, deployment, group))
    return found


def check_replica_bounds(manifests: Manifests) -> list[Problem]:
    """As many pods as replicas: at most, at least, and to begin with."""
    found = []
    for name, deployment, group in _pairs(manifests):
        scaling = deployment.get("autoscaling_config") or {}
        least, most = scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)
        spec = group.spec
        if spec["maxReplicas"] != most:
            message = f"must be the {most} of Serve's max_replicas, got {spec['maxReplicas']}"
            found.append(Problem(SUBJECT, f"{group.field}.maxReplicas", message))
        if spec["minReplicas"] != least:
            message = f"must be the {least} of {name}'s min_replicas, got {spec['minReplicas']}"
            found.append(Problem(SUBJECT, f"{group.field}.minReplicas", message))
        if not spec["minReplicas"] <= spec.get("replicas", 0) <= spec["maxReplicas"]:
            message = f"must lie within the group's limits, got {spec.get('replicas', 0)}"
            found.append(Problem(SUBJECT, f"{group.field}.replicas", message))
        if spec.get("numOfHosts", 1) != 1:
            found.append(Problem(SUBJECT, f"{group.field}.numOfHosts", "one pod is one replica"))
    return found


def check_one_replica_per_pod(manifests: Manifests) -> list[Problem]:
    """A pod offers one slot and is not promised more than its container has."""
    found = []
    for name, deployment, group in _pairs(manifests):
        slot = f"{GROUPS[name]}_slot"
        options = deployment.get("ray_actor_options") or {}
        asked = Decimal(str((options.get("resources") or {}).get(slot, 0)))
        if not asked == group.resources.get(slot) == 1:
            message = f"asked {asked}, offered {group.resources.get(slot)}: both must be 1"
            found.append(Problem(SUBJECT, f"{group.field}.resources.{slot}", message))
        for resource, limit in (("CPU", "cpu"), ("GPU", GPU)):
            offered, has = group.resources.get(resource), group.limits.get(limit)
            if offered != has:
                message = f"must be the container's limit {has}, got {offered}"
                found.append(Problem(SUBJECT, f"{group.field}.resources.{resource}", message))
        if Decimal(str(options.get("num_cpus", 1))) > group.resources.get("CPU", 0):
            field = f"serveConfigV2.deployments[{name}].ray_actor_options.num_cpus"
            found.append(Problem(SUBJECT, field, "is more than its pod has"))
    return found


def check_devices(manifests: Manifests) -> list[Problem]:
    """A model on cuda has one GPU, one on the CPU has none and no more threads than its pod."""
    try:
        config = AppConfig.from_mapping(manifests.arguments)
    except ConfigError:
        return []  # check_settings says so
    found = []
    for name, deployment, group in _pairs(manifests):
        engine = getattr(config, MODELS[name]) if name in MODELS else None
        expected = 1 if engine is not None and engine.device.startswith("cuda") else 0
        num_gpus = (deployment.get("ray_actor_options") or {}).get("num_gpus", 0)
        if num_gpus != expected:
            field = f"serveConfigV2.deployments[{name}].ray_actor_options.num_gpus"
            found.append(Problem(SUBJECT, field, f"must be {expected}, got {num_gpus}"))
        if group.limits.get(GPU, 0) != expected:
            field = f"{group.field}.template.spec.containers[0].resources.limits.{GPU}"
            found.append(Problem(SUBJECT, field, f"must be {expected} for {name}"))
        if engine is not None and not expected:
            threads = engine.num_threads
            if threads is None or threads > group.limits.get("cpu", 0):
                field = f"serveConfigV2.applications.args.{MODELS[name]}.num_threads"
                message = f"must be set, at most the pod's {group.limits.get('cpu')}: {threads}"
                found.append(Problem(SUBJECT, field, message))
    return found


def check_scaling_target(manifests: Manifests) -> list[Problem]:
    """A replica is joined by another before it is full: each session is an ongoing request."""
    try:
        config = AppConfig.from_mapping(manifests.arguments)
    except ConfigError:
        return []
    takes = {
        "Router": config.router.max_waiting_requests,
        "Draft": config.draft.max_num_sequences,
        "Target": config.target.max_num_sequences,
    }
    found = []
    for name, deployment, _ in _pairs(manifests):
        target = (deployment.get("autoscaling_config") or {}).get("target_ongoing_requests", 2)
        if not 0.25 * takes[name] <= target <= 0.9 * takes[name]:
            field = f"serveConfigV2.deployments[{name}].autoscaling_config.target_ongoing_requests"
            message = f"must be 25-90 % of the {takes[name]} that a replica takes, got {target}"
            found.append(Problem(SUBJECT, field, message))
    return found


def check_idle_and_downscale(manifests: Manifests) -> list[Problem]:
    """Pods outlive a short lull: the autoscaler waits before it takes an empty one away."""
    found = []
    for group in manifests.workers:
        idle_s = group.spec.get("idleTimeoutSeconds", 0)
        if idle_s < 60:
            message = f"must be at least 60, got {idle_s}: nodes would come and go"
            found.append(Problem(SUBJECT, f"{group.field}.idleTimeoutSeconds", message))
    return found
