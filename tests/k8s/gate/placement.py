"""Where would Ray's own autoscaler put each replica? Asked of its code, with no cluster.

The code that runs beside the head turns the manifest into node types and replicas waiting
for room into pods. Its modules are private to Ray; the version is pinned. A replica must
find room on a pod of its own group, and on no other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

from tests.k8s.gate.manifests import Manifests, slots
from tests.k8s.gate.problems import Problem

SUBJECT = "RayService/specdist"
HEAD_TYPE = "headgroup"
GROUPS = {"Router": "router", "Draft": "draft", "Target": "target"}
Bundle = Mapping[str, float]

logging.getLogger("ray.autoscaler.v2.scheduler").setLevel(logging.WARNING)


def node_types(manifests: Manifests) -> dict[str, Any]:
    """Ray's node types, derived by the autoscaler's own code."""
    metadata = {"name": "specdist", "namespace": "specdist"}
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": metadata, "spec": manifests.cluster}
    )
    types: dict[str, Any] = AutoscalingConfig(
        config, skip_content_hash=True
    ).get_node_type_configs()
    return types


def bundle(deployment: Mapping[str, Any]) -> dict[str, float]:
    """What one replica asks for."""
    options = deployment.get("ray_actor_options") or {}
    wanted = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    wanted |= options.get("resources") or {}
    return {name: float(amount) for name, amount in wanted.items() if amount}


def launched(types: Mapping[str, Any], bundles: Iterable[Bundle]) -> tuple[dict[str, int], int]:
    """(pods by group, replicas without room) when these replicas wait in an empty cluster."""
    requests = [ResourceRequestUtil.make(dict(b)) for b in bundles]
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=dict(types),
            max_num_nodes=sum(kind.max_worker_nodes for kind in types.values()),
            resource_requests=ResourceRequestUtil.group_by_count(requests),
        )
    )
    pods = {launch.instance_type: launch.count for launch in reply.to_launch}
    return pods, len(reply.infeasible_resource_requests)


def _bounds(deployment: Mapping[str, Any]) -> tuple[int, int]:
    scaling = deployment.get("autoscaling_config") or {}
    return scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)


def check_placement(manifests: Manifests) -> list[Problem]:
    """Each deployment at its most replicas: alone, without its group, and all together."""
    try:
        types = node_types(manifests)
    except Exception as error:  # whatever Ray's code says of the manifest is the finding
        return [Problem(SUBJECT, "rayClusterConfig", f"Ray's autoscaler refuses it: {error}")]
    found = []
    everything, expected = [], {}
    for name, group in GROUPS.items():
        deployment = manifests.deployments.get(name)
        if deployment is None or group not in types:
            message = f"no group {group!r} for deployment {name!r}"
            found.append(Problem(SUBJECT, "rayClusterConfig.workerGroupSpecs", message))
            continue
        wanted, most = bundle(deployment), _bounds(deployment)[1]
        found += _binding(name, group, deployment)
        found += _alone(types, name, group, [wanted] * most)
        found += _elsewhere(types, name, group, wanted)
        everything += [wanted] * most
        expected[group] = max(most, types[group].min_worker_nodes)
    if not found and (got := launched(types, everything)) != (expected, 0):
        message = f"all at once make {got[0]} and leave {got[1]} without room, not {expected}"
        found.append(Problem(SUBJECT, "rayClusterConfig.workerGroupSpecs", message))
    return found


def _binding(name: str, group: str, deployment: Mapping[str, Any]) -> list[Problem]:
    """By a resource of its group's own, never by the number of GPUs alone (742, 1430)."""
    wanted = f"{group}_slot"
    if slots((deployment.get("ray_actor_options") or {}).get("resources") or {}) == [wanted]:
        return []
    field = f"serveConfigV2.deployments[{name}].ray_actor_options.resources"
    return [Problem(SUBJECT, field, f"must ask for {wanted} and no other slot")]


def _alone(types: Mapping[str, Any], name: str, group: str, bundles: list[Bundle]) -> list[Problem]:
    """Waiting replicas of one deployment add pods of one group, one each."""
    idle = {other: kind.min_worker_nodes for other, kind in types.items()}
    expected = {k: n for k, n in {**idle, group: max(len(bundles), idle[group])}.items() if n}
    pods, without_room = launched(types, bundles)
    if (pods, without_room) == (expected, 0):
        return []
    message = (
        f"{len(bundles)} {name} replicas make pods {pods} and leave {without_room} "
        f"without room; they must make {expected}"
    )
    return [Problem(SUBJECT, f"rayClusterConfig.workerGroupSpecs[{group}]", message)]


def _elsewhere(types: Mapping[str, Any], name: str, group: str, wanted: Bundle) -> list[Problem]:
    """No other pod, the head included, has room for it."""
    takers = [
        other
        for other, kind in types.items()
        if other != group
        and all(kind.resources.get(resource, 0) >= amount for resource, amount in wanted.items())
    ]
    others = {other: kind for other, kind in types.items() if other not in (group, HEAD_TYPE)}
    if not takers and launched(others, [wanted])[1] == 0:
        takers = ["another group, by the scheduler"]
    return [
        Problem(SUBJECT, f"rayClusterConfig.{taker}", f"would take a {name} replica")
        for taker in takers
    ]


def check_head_without_work(manifests: Manifests) -> list[Problem]:
    """The head offers nothing that a replica could ask for."""
    offered = {name: n for name, n in manifests.head.resources.items() if n and name != "memory"}
    if "CPU" not in manifests.head.resources:
        offered = {"CPU": manifests.head.limits.get("cpu")}
    if "nvidia.com/gpu" in manifests.head.limits:
        offered["GPU"] = manifests.head.limits["nvidia.com/gpu"]
    field = "rayClusterConfig.headGroupSpec.resources"
    return [
        Problem(SUBJECT, f"{field}.{name}", f"must be 0, got {amount}")
        for name, amount in offered.items()
    ]
