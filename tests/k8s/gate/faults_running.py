"""Seeded faults in what keeps the service up and closed: drains, rights, network, nodes."""

from __future__ import annotations

from typing import Any

from tests.k8s.gate.faults import Fault, put, scaling

HTTP = ("HTTPRoute", "specdist")


def pod_monitor(node_type: str, port: str) -> dict[str, Any]:
    """A PodMonitor for pods of one type."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "other"},
        "spec": {
            "selector": {"matchLabels": {"ray.io/node-type": node_type}},
            "podMetricsEndpoints": [{"port": port}],
        },
    }


FAULTS = [
    # availability
    Fault("drain", "killed in the middle of the drain", lambda b: put(
        b.pod("target"), "terminationGracePeriodSeconds", 30)),
    Fault("drain", "drain shorter than an answer", lambda b: put(
        b.variable("router", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"), "value", "30")),
    Fault("drain", "longer than a spot node's notice", lambda b: put(
        b.pod("draft"), "terminationGracePeriodSeconds", 600)),
    Fault("drain", "preStop: ray stop", lambda b: put(
        b.container("target"), "lifecycle", {"preStop": {"exec": {"command": ["ray", "stop"]}}})),
    Fault("upgrade", "streams cut at the switch (B128)", lambda b: put(
        b.service, "rayClusterDeletionDelaySeconds", 60)),
    Fault("upgrade", "answers longer than the delay", lambda b: b.application(
        lambda a: put(a["args"], "router", {"max_answer_s": 3600}))),
    Fault("slow start", "own liveness probe (B125)", lambda b: put(
        b.container("target"), "livenessProbe", {"httpGet": {"path": "/", "port": 8000}})),
    Fault("slow start", "five minutes to initialise (B125)", lambda b: put(
        b.find("RayService", "specdist")["metadata"]["annotations"],
        "ray.io/initializing-timeout", "5m")),
    Fault("ready means serving", "an upgrade waits for a draft (B130)", lambda b: b.deployment(
        "Draft", scaling(min_replicas=1))),
    Fault("ready means serving", "RUNNING without a target (B127)", lambda b: b.deployment(
        "Target", scaling(min_replicas=0))),
    Fault("head may go", "requests to the head (B129)", lambda b: b.service.pop(
        "excludeHeadPodFromServeSvc")),
    Fault("head may go", "no fault tolerance (B129)", lambda b: b.cluster.pop(
        "gcsFaultToleranceOptions")),
    Fault("head may go", "head with 2 GiB", lambda b: put(
        b.container("head")["resources"]["limits"], "memory", "2Gi")),
    Fault("disruption budgets", "a budget in percent", lambda b: put(
        b.find("PodDisruptionBudget", "specdist-target")["spec"], "minAvailable", "50%")),
    Fault("disruption budgets", "no node may drain", lambda b: put(
        b.find("PodDisruptionBudget", "specdist-target")["spec"], "minAvailable", 2)),
    Fault("disruption budgets", "none for targets", lambda b: b.drop(
        "PodDisruptionBudget", "specdist-target")),
    Fault("disruption budgets", "selects nothing", lambda b: put(
        b.find("PodDisruptionBudget", "specdist-router")["spec"]["selector"]["matchLabels"],
        "ray.io/group", "ingress")),
    Fault("priorities", "class that is not there", lambda b: put(
        b.pod("target"), "priorityClassName", "high")),
    Fault("priorities", "drafts before targets", lambda b: put(
        b.find("PriorityClass", "specdist-draft"), "value", 90000)),
    Fault("priorities", "headroom that does not yield", lambda b: put(
        b.find("PriorityClass", "specdist-headroom"), "value", 1)),
    # security
    Fault("pod security", "root", lambda b: put(
        b.pod("draft")["securityContext"], "runAsUser", 0)),
    Fault("pod security", "may become root", lambda b: b.container("draft").pop(
        "securityContext")),
    Fault("pod security", "autoscaler without a context", lambda b: b.cluster[
        "autoscalerOptions"].pop("securityContext")),
    Fault("pod security", "host network", lambda b: put(b.pod("target"), "hostNetwork", True)),
    Fault("pod security", "weights from the host", lambda b: put(
        b.pod("target")["volumes"], 0, {"name": "models", "hostPath": {"path": "/models"}})),
    Fault("pod security", "namespace that admits all", lambda b: put(
        b.find("Namespace", "specdist")["metadata"]["labels"],
        "pod-security.kubernetes.io/enforce", "privileged")),
    Fault("images", "latest", lambda b: put(
        b.container("draft"), "image", "registry.example.com/specdist:latest")),
    Fault("images", "no tag", lambda b: put(
        b.find("StatefulSet", "specdist-redis")["spec"]["template"]["spec"]["containers"][0],
        "image", "redis")),
    Fault("images", "two versions in one cluster", lambda b: put(
        b.container("draft"), "image", "registry.example.com/specdist:0.0.9")),
    Fault("secrets", "a Secret in the repository", lambda b: b.documents.append(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "specdist-redis"},
         "stringData": {"password": "hunter2"}})),
    Fault("secrets", "password as a value", lambda b: put(
        b.cluster["gcsFaultToleranceOptions"], "redisPassword", {"value": "hunter2"})),
    Fault("secrets", "token in the environment", lambda b: b.container("head")["env"].append(
        {"name": "RAY_AUTH_TOKEN", "value": "abc"})),
    Fault("service accounts", "workers may ask the API server", lambda b: b.pod("router").pop(
        "automountServiceAccountToken")),
    Fault("service accounts", "autoscaler may not", lambda b: put(
        b.pod("head"), "automountServiceAccountToken", False)),
    # network
    Fault("closed by default", "egress open", lambda b: put(
        b.find("NetworkPolicy", "default-deny")["spec"], "policyTypes", ["Ingress"])),
    Fault("open ways", "no DNS", lambda b: b.drop("NetworkPolicy", "dns")),
    Fault("open ways", "autoscaler cut off", lambda b: b.drop(
        "NetworkPolicy", "head-to-api-server")),
    Fault("open ways", "operator cut off", lambda b: put(
        b.find("NetworkPolicy", "operator")["spec"]["ingress"][0]["ports"][0], "port", 8000)),
    Fault("open ways", "Redis cut off", lambda b: b.drop("NetworkPolicy", "redis")),
    Fault("open ways", "nodes cut off", lambda b: b.drop("NetworkPolicy", "ray-nodes")),
    Fault("strangers", "dashboard for clients", lambda b: b.find(
        "NetworkPolicy", "clients")["spec"]["ingress"][0]["ports"].append({"port": 8265})),
    Fault("strangers", "open to every namespace", lambda b: put(
        b.find("NetworkPolicy", "clients")["spec"]["ingress"][0]["from"][0],
        "namespaceSelector", {})),
    Fault("strangers", "clients may talk to the head", lambda b: put(
        b.find("NetworkPolicy", "clients")["spec"], "podSelector", {})),
    Fault("routes", "gRPC to the HTTP port", lambda b: put(
        b.find("GRPCRoute", "specdist")["spec"]["rules"][0]["backendRefs"][0], "port", 8000)),
    Fault("routes", "service of another name", lambda b: put(
        b.find(*HTTP)["spec"]["rules"][0]["backendRefs"][0], "name", "specdist")),
    Fault("routes", "metrics for everybody", lambda b: put(
        b.find(*HTTP)["spec"]["rules"][0]["matches"][0]["path"], "value", "/")),
    Fault("routes", "one host for both", lambda b: put(
        b.find("GRPCRoute", "specdist")["spec"], "hostnames", ["specdist.example.com"])),
    Fault("monitored ports", "port that no pod has", lambda b: b.documents.append(
        pod_monitor("worker", "prom"))),
    Fault("monitored ports", "pods that are not there", lambda b: b.documents.append(
        pod_monitor("ingress", "metrics"))),
    # nodes
    Fault("GPU nodes", "drafts on any GPU", lambda b: b.pod("draft").pop("nodeSelector")),
    Fault("GPU nodes", "taint not tolerated", lambda b: b.pod("target").pop("tolerations")),
    Fault("GPU nodes", "routers on GPU nodes", lambda b: put(
        b.pod("router"), "tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}])),
    Fault("node pools", "targets on spot", lambda b: b.find("NodePool", "specdist-target")["spec"][
        "template"]["spec"]["requirements"][1]["values"].append("spot")),
    Fault("node pools", "no room for an upgrade", lambda b: put(
        b.find("NodePool", "specdist-target")["spec"]["limits"], "nvidia.com/gpu", "8")),
    Fault("node pools", "selector without a pool", lambda b: put(
        b.pod("router")["nodeSelector"], "specdist.dev/pool", "cpus")),
    Fault("node pools", "node gone before its pods", lambda b: put(
        b.find("NodePool", "specdist-target")["spec"]["template"]["spec"],
        "terminationGracePeriod", "5m")),
]  # fmt: skip
