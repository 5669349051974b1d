"""Would Pod Security's `restricted` admit every pod, and is nothing secret or loose here?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.problems import Problem, name_of

SUBJECT = "RayService/specdist"
IMAGE = re.compile(r"[a-z0-9./-]+(:[0-9]+/[a-z0-9./-]+)?:[\w.-]+(@sha256:[0-9a-f]{64})?")
LOOSE_TAGS = ("latest", "nightly", "master", "main", "stable")
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")
SECRET_WORD = re.compile(r"password|token|secret|credential|api_?key", re.IGNORECASE)


def check_pod_security(manifests: Manifests) -> list[Problem]:
    """The rules of `restricted`, and the namespace that asks for them."""
    found = []
    for subject, field, pod in manifests.pods():
        found += [Problem(subject, f"{field}.{f}", m) for f, m in _pod_rules(pod)]
    options = manifests.cluster.get("autoscalerOptions", {})
    field = "rayClusterConfig.autoscalerOptions.securityContext"
    rules = _container_rules(options.get("securityContext") or {}, {})
    found += [Problem(SUBJECT, f"{field}.{f}", m) for f, m in rules]
    for namespace in manifests.of_kind("Namespace"):
        label = "pod-security.kubernetes.io/enforce"
        if namespace["metadata"].get("labels", {}).get(label) != "restricted":
            found.append(Problem(name_of(namespace), f"metadata.labels.{label}", "not restricted"))
    return found


def _pod_rules(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in HOST_FIELDS:
        if pod.get(name):
            yield name, "must not be set"
    for volume in pod.get("volumes", []):
        if kind := next((k for k in volume if k != "name" and k not in VOLUMES), None):
            yield f"volumes.{volume['name']}", f"{kind} is not allowed"
    context = pod.get("securityContext") or {}
    if context.get("runAsUser", 0) == 0:
        yield "securityContext.runAsUser", "must be a number above 0: a name cannot be verified"
    for part in ("containers", "initContainers"):
        for container in pod.get(part, []):
            rules = _container_rules(container.get("securityContext") or {}, context)
            yield from ((f"{part}.{container['name']}.securityContext.{f}", m) for f, m in rules)
            if any("hostPort" in port for port in container.get("ports", [])):
                yield f"{part}.{container['name']}.ports", "hostPort is not allowed"


def _container_rules(
    context: Mapping[str, Any], pod_context: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    def value(name: str) -> Any:
        return context.get(name, pod_context.get(name))

    if context.get("privileged"):
        yield "privileged", "must not be set"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation", "must be false"
    if value("runAsNonRoot") is not True:
        yield "runAsNonRoot", "must be true"
    if (value("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile.type", "must be RuntimeDefault"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities.drop", "must drop ALL"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities.add", "must add nothing"


def check_images(manifests: Manifests) -> list[Problem]:
    """Every image has a tag or digest of its own; Ray's pods share one."""
    found = []
    for subject, field, pod in manifests.pods():
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            image = container.get("image", "")
            tag = image.partition("@")[0].rpartition(":")[2]
            if not IMAGE.fullmatch(image) or tag in LOOSE_TAGS:
                where = f"{field}.containers.{container['name']}.image"
                found.append(Problem(subject, where, f"must have a fixed tag, got {image!r}"))
            if not container.get("resources", {}).get("limits", {}).get("memory"):
                where = f"{field}.containers.{container['name']}.resources.limits.memory"
                found.append(Problem(subject, where, "is missing"))
    images = {group.container.get("image") for group in manifests.groups}
    if len(images) > 1:
        message = f"head and groups must run one image, got {', '.join(sorted(map(str, images)))}"
        found.append(Problem(SUBJECT, "rayClusterConfig", message))
    return found


def check_secrets(manifests: Manifests) -> list[Problem]:
    """Passwords and tokens come by reference, never in a manifest."""
    found = [
        Problem(name_of(document), "kind", "no Secret belongs in a repository")
        for document in manifests.of_kind("Secret")
    ]
    for subject, field, pod in manifests.pods():
        for container in pod["containers"]:
            found += [
                Problem(subject, f"{field}.containers.env.{entry['name']}", "must be valueFrom")
                for entry in container.get("env", [])
                if SECRET_WORD.search(entry["name"]) and entry.get("value")
            ]
    redis = manifests.cluster.get("gcsFaultToleranceOptions") or {}
    if redis and "valueFrom" not in redis.get("redisPassword", {}):
        field = "rayClusterConfig.gcsFaultToleranceOptions.redisPassword"
        found.append(Problem(SUBJECT, field, "must be valueFrom.secretKeyRef"))
    return found


def check_service_accounts(manifests: Manifests) -> list[Problem]:
    """Only the head, where the autoscaler runs, may talk to the API server."""
    found = []
    for subject, field, pod in manifests.pods():
        is_head = field.startswith(manifests.head.field)
        if not is_head and pod.get("automountServiceAccountToken") is not False:
            message = "must be false: only the head talks to the API server"
            found.append(Problem(subject, f"{field}.automountServiceAccountToken", message))
        if is_head and pod.get("automountServiceAccountToken") is False:
            message = "must not be false: the autoscaler beside the head needs it"
            found.append(Problem(subject, f"{field}.automountServiceAccountToken", message))
    return found
