"""The rules of KubeRay 1.7 that its CRD does not hold, and its known traps.

A manifest that breaks one is refused by the operator, or taken and misunderstood. The
numbers are issues of ray-project/kuberay.
"""

from __future__ import annotations

import re
from typing import Any

from tests.k8s.gate.manifests import Group, Manifests
from tests.k8s.gate.problems import Problem

SERVICE = "RayService/specdist"
MAX_NAME = 47
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RAY_RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
HEAD_PORTS = ("gcs-server", "dashboard", "serve", "serve-grpc", "metrics", "as-metrics")
WORKER_PORTS = ("serve", "metrics")
REDIS_VARIABLES = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME")


def check_operator_rules(manifests: Manifests) -> list[Problem]:
    """What the operator's own validation refuses."""
    service, cluster = manifests.rayservice, manifests.cluster
    found = [_problem(f, m) for f, m in _service_rules(service) + _cluster_rules(cluster)]
    for group in manifests.groups:
        found += [_problem(f"{group.field}.{f}", m) for f, m in _group_rules(group)]
    return found


def _problem(field: str, message: str) -> Problem:
    return Problem(SERVICE, field, message)


def _service_rules(service: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    name = service["metadata"]["name"]
    if len(name) > MAX_NAME or not NAME.fullmatch(name):
        found.append(("metadata.name", f"must be a DNS-1035 name of at most {MAX_NAME}: {name!r}"))
    upgrade = service["spec"].get("upgradeStrategy", {})
    if upgrade.get("type") != "NewCluster":
        found.append(
            (
                "upgradeStrategy.type",
                f"must be NewCluster, got {upgrade.get('type')!r}: the incremental upgrade "
                "does not route gRPC (5265) and None never upgrades",
            )
        )
    for old in ("deploymentUnhealthySecondThreshold", "serviceUnhealthySecondThreshold"):
        if old in service["spec"]:
            found.append((old, "made a slow scale-up a whole new cluster (1277): leave it out"))
    return found


def _cluster_rules(cluster: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    prefix = "rayClusterConfig"
    if "upgradeStrategy" in cluster:
        found.append((f"{prefix}.upgradeStrategy", "is refused inside a RayService"))
    if "networkPolicy" in cluster:
        found.append((f"{prefix}.networkPolicy", "is refused while its feature gate is off"))
    if "tlsOptions" in cluster:
        found.append((f"{prefix}.tlsOptions", "is refused while its feature gate is off"))
    auth = cluster.get("authOptions", {})
    if auth.get("mode") != "token":
        found.append((f"{prefix}.authOptions.mode", f"must be token, got {auth.get('mode')!r}"))
    if auth.get("enableK8sTokenAuth"):
        found.append((f"{prefix}.authOptions.enableK8sTokenAuth", "is refused for a RayService"))
    head_service = cluster["headGroupSpec"].get("headService", {})
    if head_service.get("metadata", {}).get("name"):
        field = f"{prefix}.headGroupSpec.headService.metadata.name"
        found.append((field, "must not be set: an upgrade would never end (2433)"))
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    if len(names) != len(set(names)):
        found.append((f"{prefix}.workerGroupSpecs", f"group names repeat: {', '.join(names)}"))
    if (cluster.get("gcsFaultToleranceOptions") or {}).get("externalStorageNamespace"):
        field = f"{prefix}.gcsFaultToleranceOptions.externalStorageNamespace"
        found.append((field, "must be unset: two clusters would share it during an upgrade"))
    return found


def _group_rules(group: Group) -> list[tuple[str, str]]:
    found = []
    parameters = group.spec.get("rayStartParams", {})
    double = [name for name in RAY_RESOURCE_PARAMS if name in parameters]
    if double and group.spec.get("resources"):
        found.append(("rayStartParams", f"{double[0]} is refused beside the group's resources"))
    if "labels" in parameters:
        found.append(("rayStartParams.labels", "is refused: use the group's labels"))
    restart = group.pod.get("restartPolicy", "Never")
    if restart != "Never":
        found.append(
            ("template.spec.restartPolicy", f"must be Never with autoscaler v2: {restart}")
        )
    for name in REDIS_VARIABLES:
        if group.is_head and name in group.environment:
            found.append((f"template.spec.containers[0].env.{name}", "the operator's to set"))
    command = group.container.get("command") or group.container.get("args")
    if command:
        found.append(("template.spec.containers[0].command", "must be left to KubeRay"))
    return found


def check_autoscaler(manifests: Manifests) -> list[Problem]:
    """Autoscaler v2, by the field from which the operator takes the rest (ray#58933)."""
    cluster = manifests.cluster
    options = cluster.get("autoscalerOptions", {})
    found = []
    if cluster.get("enableInTreeAutoscaling") is not True:
        found.append(_problem("rayClusterConfig.enableInTreeAutoscaling", "must be true"))
    if options.get("version") != "v2":
        field = "rayClusterConfig.autoscalerOptions.version"
        found.append(_problem(field, f"must be v2, got {options.get('version')!r}"))
    for group in manifests.groups:
        if "RAY_enable_autoscaler_v2" in group.environment:
            field = f"{group.field}.template.spec.containers[0].env.RAY_enable_autoscaler_v2"
            found.append(_problem(field, "is refused beside autoscalerOptions.version"))
        if "CPU" not in group.resources and "cpu" not in group.limits:
            message = "without CPU the autoscaler cannot tell the size of a node (2612)"
            found.append(_problem(f"{group.field}.resources.CPU", message))
    return found


def check_ports(manifests: Manifests) -> list[Problem]:
    """The names by which KubeRay finds ports; gRPC reaches the Service by serve-* only (4558)."""
    http = manifests.serve.get("http_options", {}).get("port", 8000)
    grpc = manifests.serve.get("grpc_options", {}).get("port", 9000)
    wanted = {"serve": http, "serve-grpc": grpc}
    found = []
    for group in manifests.groups:
        field = f"{group.field}.template.spec.containers[0].ports"
        needed = HEAD_PORTS if group.is_head else WORKER_PORTS
        missing = [name for name in needed if name not in group.ports]
        if missing:
            found.append(_problem(field, f"no port named {', '.join(missing)}"))
        for name, port in wanted.items():
            if group.ports.get(name, port) != port:
                got = group.ports[name]
                found.append(_problem(f"{field}.{name}", f"must be Serve's {port}, got {got}"))
    return found + _serve_service(manifests)


def _serve_service(manifests: Manifests) -> list[Problem]:
    """Ports of serveService only add details to ports of the head; others are dropped."""
    service = manifests.rayservice["spec"].get("serveService", {})
    found = []
    for port in service.get("spec", {}).get("ports", []):
        field = f"serveService.spec.ports.{port.get('name')}"
        if manifests.head.ports.get(port.get("name")) != port["port"]:
            found.append(_problem(field, "is no port of the head by that name and number: dropped"))
        if port.get("name") == "serve-grpc" and port.get("appProtocol") != "kubernetes.io/h2c":
            found.append(_problem(f"{field}.appProtocol", "must be kubernetes.io/h2c for gateways"))
    return found
