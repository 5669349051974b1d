"""Does an answer survive what happens to pods: drains, upgrades, slow starts, a lost head.

Each check carries the report that taught it.
"""

from __future__ import annotations

from specdist.config import AppConfig
from specdist.errors import ConfigError
from tests.k8s.gate.manifests import Group, Manifests, quantity, seconds
from tests.k8s.gate.problems import Problem, name_of

SUBJECT = "RayService/specdist"
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
DRAIN_DEFAULT_S = 30.0
GRACE_DEFAULT_S = 30.0
INITIALIZING = "ray.io/initializing-timeout"
LEAST_INITIALIZING_S = 30 * 60
LEAST_HEAD_MEMORY = quantity("8Gi")
KEEPS_ANSWERS = ("router", "target")  # a pod of these that goes takes answers with it
SPOT_NOTICE_S = 120


def _longest_answer_s(manifests: Manifests) -> float:
    try:
        return AppConfig.from_mapping(manifests.arguments).router.max_answer_s
    except ConfigError:
        return AppConfig().router.max_answer_s


def check_drain(manifests: Manifests) -> list[Problem]:
    """SIGTERM drains the node; Kubernetes must not kill before that is over (ray#64181)."""
    answer_s = _longest_answer_s(manifests)
    found = []
    for group in manifests.groups:
        drain_s = float(group.environment.get(DRAIN, DRAIN_DEFAULT_S))
        grace_s = float(group.pod.get("terminationGracePeriodSeconds", GRACE_DEFAULT_S))
        field = f"{group.field}.template.spec"
        if grace_s < drain_s + 10:
            message = f"must exceed the drain of {drain_s:g} s by 10 s, got {grace_s:g}"
            found.append(Problem(SUBJECT, f"{field}.terminationGracePeriodSeconds", message))
        if group.name in KEEPS_ANSWERS and drain_s <= answer_s:
            message = f"must exceed the longest answer, {answer_s:g} s, got {drain_s:g}"
            found.append(Problem(SUBJECT, f"{field}.containers[0].env.{DRAIN}", message))
        if group.name == "draft" and grace_s > SPOT_NOTICE_S:
            message = f"must fit a spot node's notice of {SPOT_NOTICE_S} s, got {grace_s:g}"
            found.append(Problem(SUBJECT, f"{field}.terminationGracePeriodSeconds", message))
        if "preStop" in group.container.get("lifecycle", {}):
            message = "must not be set: it would stop Ray before it drains"
            found.append(Problem(SUBJECT, f"{field}.containers[0].lifecycle.preStop", message))
    return found


def check_upgrade_keeps_streams(manifests: Manifests) -> list[Problem]:
    """The old cluster outlives the switch by the longest answer (3166, 4126, 4799)."""
    answer_s = _longest_answer_s(manifests)
    delay_s = manifests.rayservice["spec"].get("rayClusterDeletionDelaySeconds", 60)
    if delay_s > answer_s:
        return []
    message = f"must exceed the longest answer, {answer_s:g} s, got {delay_s}"
    return [Problem(SUBJECT, "rayClusterDeletionDelaySeconds", message)]


def check_slow_start(manifests: Manifests) -> list[Problem]:
    """Loading for minutes is no failure (1826): KubeRay's probes stay, the time is enough."""
    found = []
    for group in manifests.groups:
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in group.container:
                field = f"{group.field}.template.spec.containers[0].{probe}"
                message = "must be left to KubeRay: it knows the raylet and the Serve proxy"
                found.append(Problem(SUBJECT, field, message))
    text = manifests.rayservice["metadata"].get("annotations", {}).get(INITIALIZING)
    try:
        enough = text is not None and seconds(text) >= LEAST_INITIALIZING_S
    except ValueError:
        enough = False
    if not enough:
        message = f"must be a time of at least 30m, got {text!r}: beyond it the service has failed"
        found.append(Problem(SUBJECT, f"metadata.annotations.{INITIALIZING}", message))
    return found


def check_ready_means_serving(manifests: Manifests) -> list[Problem]:
    """Traffic moves to a cluster whose target answers (1559), whether or not a draft does.

    KubeRay switches when the application is RUNNING, and Serve calls it so when each
    deployment has its initial replicas: with Draft at 0, no GPU for a draft holds up an
    upgrade or makes the application look unhealthy (1277).
    """
    found = []
    for name, optional in (("Router", False), ("Draft", True), ("Target", False)):
        scaling = manifests.deployments.get(name, {}).get("autoscaling_config") or {}
        least = scaling.get("min_replicas", 1)
        first = scaling.get("initial_replicas") or least
        field = f"serveConfigV2.deployments[{name}].autoscaling_config.min_replicas"
        if optional and first != 0:
            found.append(Problem(SUBJECT, field, f"must be 0: drafts are optional, got {first}"))
        if not optional and least < 1:
            found.append(Problem(SUBJECT, field, f"must be at least 1, got {least}"))
    for group in manifests.workers:
        if "serve" not in group.ports:
            field = f"{group.field}.template.spec.containers[0].ports"
            message = "readiness asks the port named serve, and there is none"
            found.append(Problem(SUBJECT, field, message))
    return found


def check_head_may_go(manifests: Manifests) -> list[Problem]:
    """While the head recovers, requests are served (1153), and it has memory enough (4287)."""
    found = []
    if manifests.rayservice["spec"].get("excludeHeadPodFromServeSvc") is not True:
        message = "must be true: requests would fail while the head recovers"
        found.append(Problem(SUBJECT, "excludeHeadPodFromServeSvc", message))
    redundant = any(g.spec["minReplicas"] > 1 for g in manifests.workers)
    if redundant and not manifests.cluster.get("gcsFaultToleranceOptions"):
        message = "is missing: without it every pod dies with the head"
        found.append(Problem(SUBJECT, "rayClusterConfig.gcsFaultToleranceOptions", message))
    memory = manifests.head.limits.get("memory", 0)
    if memory < LEAST_HEAD_MEMORY:
        field = f"{manifests.head.field}.template.spec.containers[0].resources.limits.memory"
        found.append(Problem(SUBJECT, field, f"must be at least 8Gi, got {memory}"))
    return found


def check_disruption_budgets(manifests: Manifests) -> list[Problem]:
    """Integers, as there is no scale subresource (2662), and never so many that no node drains."""
    found = []
    covered = set()
    for budget in manifests.of_kind("PodDisruptionBudget"):
        spec = budget["spec"]
        name = spec.get("selector", {}).get("matchLabels", {}).get("ray.io/group")
        group = manifests.worker(name)
        least = spec.get("minAvailable")
        if group is None:
            message = f"selects no worker group: ray.io/group={name!r}"
            found.append(Problem(name_of(budget), "spec.selector", message))
        elif not isinstance(least, int):
            message = f"must be an integer, got {least!r}; maxUnavailable cannot work"
            found.append(Problem(name_of(budget), "spec.minAvailable", message))
        elif least >= group.spec["minReplicas"]:
            message = f"must be below the group's {group.spec['minReplicas']} pods, got {least}"
            found.append(Problem(name_of(budget), "spec.minAvailable", message))
        else:
            covered.add(group.name)
    found += [
        Problem(SUBJECT, group.field, "two pods or more and no PodDisruptionBudget (1333, 5004)")
        for group in manifests.workers
        if group.name in KEEPS_ANSWERS and _is_redundant(group) and group.name not in covered
    ]
    return found


def _is_redundant(group: Group) -> bool:
    return bool(group.spec["minReplicas"] > 1)


def check_priorities(manifests: Manifests) -> list[Problem]:
    """When nodes are short, drafts yield to targets, and headroom to everything."""
    values = {p["metadata"]["name"]: p["value"] for p in manifests.of_kind("PriorityClass")}
    found = []
    rank = {}
    for group in manifests.groups:
        name = group.pod.get("priorityClassName")
        if name not in values:
            field = f"{group.field}.template.spec.priorityClassName"
            found.append(Problem(SUBJECT, field, f"names no class that is here: {name!r}"))
        rank[group.name] = values.get(name, 0)
    if not found and not rank["draft"] < rank["target"] <= rank["router"] <= rank["head"]:
        message = "must rise from draft over target and router to the head"
        found.append(Problem(SUBJECT, "priorityClassName", message))
    for document in manifests.of_kind("Deployment"):
        if document["metadata"]["name"].startswith("headroom"):
            name = document["spec"]["template"]["spec"].get("priorityClassName")
            if values.get(name, 0) >= 0:
                field = "spec.template.spec.priorityClassName"
                found.append(Problem(name_of(document), field, "headroom must yield: below 0"))
    return found
