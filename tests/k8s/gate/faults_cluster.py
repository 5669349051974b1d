"""Seeded faults in what the cluster is: shape, KubeRay's rules, ports, Serve, placement, bounds."""

from __future__ import annotations

from collections.abc import Callable

from tests.k8s.gate.faults import Broken, Fault, options, put, scaling, update


def only_gpus(broken: Broken) -> None:
    """Bind drafts and targets by their number of GPUs alone."""
    for name in ("Draft", "Target"):
        broken.deployment(name, lambda d: d["ray_actor_options"].pop("resources"))


def everywhere(slot: str) -> Callable[[Broken], object]:
    """Offer a slot in the target group too, on pods that are large enough."""
    return lambda b: put(b.group("target")["resources"], slot, "1")


def swap_patch(broken: Broken) -> None:
    """What a patch by index does after somebody reordered the groups."""
    groups = broken.cluster["workerGroupSpecs"]
    groups[1]["resources"], groups[2]["resources"] = groups[2]["resources"], groups[1]["resources"]


FAULTS = [
    # shape
    Fault("core objects", "unknown field", lambda b: put(
        b.find("PodDisruptionBudget", "specdist-router")["spec"], "minAvailble", 1)),
    Fault("core objects", "wrong type", lambda b: put(
        b.find("StatefulSet", "specdist-redis")["spec"], "replicas", "one")),
    Fault("core objects", "a kind that nothing checks", lambda b: put(
        b.find("Namespace", "specdist"), "kind", "Namespce")),
    # KubeRay
    Fault("operator rules", "name too long", lambda b: put(
        b.find("RayService", "specdist")["metadata"], "name", "s" * 48)),
    Fault("operator rules", "incremental upgrade", lambda b: put(
        b.service["upgradeStrategy"], "type", "NewClusterWithIncrementalUpgrade")),
    Fault("operator rules", "old health threshold (B130)", lambda b: put(
        b.service, "serviceUnhealthySecondThreshold", 300)),
    Fault("operator rules", "network policy of the CRD", lambda b: put(
        b.cluster, "networkPolicy", {"mode": "DenyAll"})),
    Fault("operator rules", "TLS behind a closed gate", lambda b: put(
        b.cluster, "tlsOptions", {"enabled": True})),
    Fault("operator rules", "no token", lambda b: b.cluster.pop("authOptions")),
    Fault("operator rules", "named head service", lambda b: put(
        b.group("head"), "headService", {"metadata": {"name": "head"}})),
    Fault("operator rules", "resources in two places", lambda b: put(
        b.group("draft")["rayStartParams"], "num-cpus", "3")),
    Fault("operator rules", "labels as a start parameter", lambda b: put(
        b.group("draft")["rayStartParams"], "labels", "role=draft")),
    Fault("operator rules", "restart policy", lambda b: put(
        b.pod("target"), "restartPolicy", "Always")),
    Fault("operator rules", "one storage for two clusters", lambda b: put(
        b.cluster["gcsFaultToleranceOptions"], "externalStorageNamespace", "specdist")),
    Fault("operator rules", "own start command", lambda b: put(
        b.container("router"), "command", ["ray", "start"])),
    Fault("autoscaler", "autoscaler v1", lambda b: put(
        b.cluster["autoscalerOptions"], "version", "v1")),
    Fault("autoscaler", "autoscaler off", lambda b: b.cluster.pop("enableInTreeAutoscaling")),
    Fault("autoscaler", "no CPU to derive", lambda b: (
        b.group("router")["resources"].pop("CPU"),
        b.container("router")["resources"]["limits"].pop("cpu"))),
    # ports
    Fault("ports", "gRPC port named grpc", lambda b: put(
        b.port("head", "serve-grpc"), "name", "grpc")),
    Fault("ports", "no dashboard port", lambda b: put(
        b.port("head", "dashboard"), "name", "dash")),
    Fault("ports", "worker without a serve port (B127)", lambda b: put(
        b.port("target", "serve"), "name", "http")),
    Fault("ports", "Serve listens elsewhere", lambda b: b.serve(
        lambda c: put(c["grpc_options"], "port", 9001))),
    Fault("ports", "service port that the head lacks", lambda b: put(
        b.service["serveService"]["spec"]["ports"][1], "port", 12345)),
    Fault("ports", "gRPC without h2c", lambda b: b.service["serveService"]["spec"]["ports"][1].pop(
        "appProtocol")),
    # Serve
    Fault("Serve schema", "grpc_option", lambda b: b.serve(
        lambda c: put(c, "grpc_option", c.pop("grpc_options")))),
    Fault("Serve schema", "num_replica", lambda b: b.deployment("Draft", update(num_replica=2))),
    Fault("Serve schema", "min_replica", lambda b: b.deployment("Draft", scaling(min_replica=1))),
    Fault("Serve schema", "num_gpu", lambda b: b.deployment("Target", options(num_gpu=1))),
    Fault("Serve schema", "negative port", lambda b: b.serve(
        lambda c: put(c["http_options"], "port", "http"))),
    Fault("Serve schema", "empty config", lambda b: put(b.service, "serveConfigV2", "")),
    Fault("Serve autoscaling", "target missing (B127)", lambda b: b.application(
        lambda a: a["deployments"].pop(2))),
    Fault("Serve autoscaling", "unknown deployment", lambda b: b.deployment(
        "Draft", update(name="Drafts"))),
    Fault("Serve autoscaling", "both num_replicas and autoscaling", lambda b: b.deployment(
        "Target", update(num_replicas=2))),
    Fault("Serve autoscaling", "min above max", lambda b: b.deployment(
        "Target", scaling(min_replicas=9))),
    Fault("settings", "unknown argument", lambda b: b.application(
        lambda a: put(a["args"]["target"], "modle", "x"))),
    Fault("settings", "unknown rule", lambda b: b.application(
        lambda a: put(a["args"]["rules"], "default", "copuled"))),
    Fault("settings", "unknown user_config", lambda b: b.deployment(
        "Draft", update(user_config={"speculation": {"mod": "off"}}))),
    Fault("settings", "shutdown cuts answers (B128)", lambda b: b.deployment(
        "Target", update(graceful_shutdown_timeout_s=20))),
    Fault("imports", "servicer that is not there", lambda b: b.serve(lambda c: put(
        c["grpc_options"], "grpc_servicer_functions",
        ["specdist_pb2_grpc.add_GenerationServicer_to_server"]))),
    Fault("imports", "application that is not there", lambda b: b.application(
        update(import_path="deployments.app:app"))),
    Fault("imports", "code fetched at run time", lambda b: b.application(
        update(runtime_env={"working_dir": "https://example.com/code.zip"}))),
    Fault("imports", "policy that is not there", lambda b: b.deployment(
        "Draft", scaling(policy={"policy_function": "specdist.scaling:nothing"}))),
    Fault("endpoints", "HTTP on loopback only", lambda b: b.serve(
        lambda c: c["http_options"].pop("host"))),
    Fault("endpoints", "proxy on the head only", lambda b: b.serve(
        update(proxy_location="HeadOnly"))),
    # placement
    Fault("placement", "bound by GPUs alone", only_gpus),
    Fault("placement", "target pods offer a draft slot", everywhere("draft_slot")),
    Fault("placement", "target pods offer a router slot", everywhere("router_slot")),
    Fault("placement", "resources of two groups swapped", swap_patch),
    Fault("placement", "draft asks for a target slot", lambda b: b.deployment(
        "Draft", options(resources={"target_slot": 1}))),
    Fault("placement", "group too small for its replica", lambda b: put(
        b.group("target")["resources"], "CPU", "4")),
    Fault("placement", "fewer pods than replicas", lambda b: put(
        b.group("draft"), "maxReplicas", 4)),
    Fault("placement", "two replicas on one pod", lambda b: (
        b.group("router")["resources"].update(router_slot="2", CPU="6"))),
    Fault("placement", "head takes routers", lambda b: b.group("head")["resources"].update(
        CPU="4", router_slot="1")),
    Fault("head without work", "head with CPUs", lambda b: b.group("head").pop("resources")),
    # bounds
    Fault("replica bounds", "Serve may want more than the group has", lambda b: b.deployment(
        "Target", scaling(max_replicas=12))),
    Fault("replica bounds", "idle pods", lambda b: put(b.group("draft"), "minReplicas", 1)),
    Fault("replica bounds", "replicas out of bounds", lambda b: put(
        b.group("target"), "replicas", 0)),
    Fault("one replica per pod", "half a slot", lambda b: b.deployment(
        "Draft", options(resources={"draft_slot": 0.5}))),
    Fault("one replica per pod", "more CPUs promised than limited", lambda b: put(
        b.container("router")["resources"]["limits"], "cpu", "1")),
    Fault("devices", "cuda without a GPU", lambda b: b.deployment(
        "Target", lambda d: d["ray_actor_options"].pop("num_gpus"))),
    Fault("devices", "GPU for a model on the CPU", lambda b: b.application(
        lambda a: a["args"]["draft"].update(device="cpu", num_threads=2))),
    Fault("scaling target", "Serve's default of 2", lambda b: b.deployment(
        "Target", lambda d: d["autoscaling_config"].pop("target_ongoing_requests"))),
    Fault("scaling target", "scales when it is long full", lambda b: b.deployment(
        "Draft", scaling(target_ongoing_requests=128))),
    Fault("idle time", "nodes that come and go", lambda b: put(
        b.group("target"), "idleTimeoutSeconds", 5)),
]  # fmt: skip

SHAPE_FAULTS = [
    Fault("CRD", "unknown field", lambda b: put(b.service, "serveConfig", "")),
    Fault("CRD", "field one level too high", lambda b: put(
        b.service, "enableInTreeAutoscaling", True)),
    Fault("CRD", "text for a number", lambda b: put(b.group("draft"), "minReplicas", "one")),
    Fault("CRD", "number for a text", lambda b: put(b.group("head")["resources"], "CPU", 0)),
    Fault("CRD", "unknown field in a pod", lambda b: put(b.pod("draft"), "tolerances", [])),
    Fault("CRD", "group without a template", lambda b: b.group("draft").pop("template")),
    Fault("CRD", "unknown mode", lambda b: put(b.cluster["authOptions"], "mode", "tokens")),
    Fault("CRD", "port twice", lambda b: b.container("head")["ports"].append(
        {"name": "serve2", "containerPort": 8000, "protocol": "TCP"})),
]  # fmt: skip
