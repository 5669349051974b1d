"""Who may talk to whom: policies, the Service's ports, and the routes that lead to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.problems import Problem, name_of

SUBJECT = "RayService/specdist"
NAMESPACE = "kubernetes.io/metadata.name"
CLIENT_PORTS = {8000, 9000}
OPERATOR = "kuberay-operator"
NodeLabels = Mapping[str, str]


def node_labels(manifests: Manifests, name: str) -> dict[str, str]:
    """The labels that a pod of that group has: KubeRay's and those of its template."""
    group = next(group for group in manifests.groups if group.name == name)
    own = group.spec["template"].get("metadata", {}).get("labels", {})
    return {
        **own,
        **group.spec.get("labels", {}),
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "head" if group.is_head else "worker",
        "ray.io/group": "headgroup" if group.is_head else group.name,
        "ray.io/serve": "false" if group.is_head else "true",
    }


def selects(selector: Mapping[str, Any], labels: NodeLabels) -> bool:
    """Does a selector with matchLabels take these labels; an empty one takes all."""
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


def allowed(
    manifests: Manifests, labels: NodeLabels, direction: str
) -> Iterator[tuple[dict[str, Any], set[int] | None]]:
    """(peer, ports or None for all) of each rule that applies to a pod with these labels."""
    side, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    for policy in manifests.of_kind("NetworkPolicy"):
        spec = policy["spec"]
        if direction in spec.get("policyTypes", []) and selects(spec["podSelector"], labels):
            for rule in spec.get(side, []):
                ports = {port["port"] for port in rule["ports"]} if "ports" in rule else None
                for peer in rule.get(peers) or [{}]:
                    yield peer, ports


def check_closed_by_default(manifests: Manifests) -> list[Problem]:
    """One policy denies everything, in both directions, and has no rules."""
    for policy in manifests.of_kind("NetworkPolicy"):
        spec = policy["spec"]
        is_total = not spec["podSelector"] and not spec.get("ingress") and not spec.get("egress")
        if is_total and set(spec.get("policyTypes", [])) == {"Ingress", "Egress"}:
            return []
    return [Problem("NetworkPolicy/default-deny", "spec", "nothing denies ingress and egress")]


def check_open_ways(manifests: Manifests) -> list[Problem]:
    """The ways that the service needs: node to node, DNS, API server, operator, Redis."""
    found = []
    head, worker = node_labels(manifests, "head"), node_labels(manifests, "router")
    for name in (group.name for group in manifests.groups):
        labels = node_labels(manifests, name)
        for direction in ("Ingress", "Egress"):
            if not _reaches(allowed(manifests, labels, direction), worker, None):
                found.append(_way(f"{name} and other Ray nodes", direction))
        if not any(53 in (ports or ()) for _, ports in allowed(manifests, labels, "Egress")):
            found.append(_way(f"{name} to DNS", "Egress"))
    out = list(allowed(manifests, head, "Egress"))
    if not any(peer == {} and 443 in (ports or ()) for peer, ports in out):
        found.append(_way("head to the API server", "Egress"))
    operator = {NAMESPACE: OPERATOR}
    into_head = [p for p in allowed(manifests, head, "Ingress") if _namespace(p[0]) == operator]
    if not any(8265 in (ports or {8265}) for _, ports in into_head):
        found.append(_way("operator to the dashboard", "Ingress"))
    redis = {"app.kubernetes.io/name": "specdist-redis"}
    if manifests.cluster.get("gcsFaultToleranceOptions"):
        if not _reaches(iter(out), redis, 6379):
            found.append(_way("head to Redis", "Egress"))
        if not _reaches(allowed(manifests, redis, "Ingress"), head, 6379):
            found.append(_way("head to Redis", "Ingress"))
    return found


def _way(what: str, direction: str) -> Problem:
    return Problem("NetworkPolicy", direction, f"no way for {what}")


def _namespace(peer: Mapping[str, Any]) -> dict[str, str] | None:
    selector = peer.get("namespaceSelector")
    return None if selector is None else dict(selector.get("matchLabels", {}))


def _reaches(
    rules: Iterator[tuple[dict[str, Any], set[int] | None]], labels: NodeLabels, port: int | None
) -> bool:
    return any(
        "podSelector" in peer
        and selects(peer["podSelector"], labels)
        and (ports is None or port in ports)
        for peer, ports in rules
    )


def check_strangers(manifests: Manifests) -> list[Problem]:
    """From other namespaces: clients to 8000 and 9000 only, the dashboard for the operator.

    Metrics ports may be open to one namespace that is named.
    """
    found = []
    metrics = {n for g in manifests.groups for p, n in g.ports.items() if p.endswith("metrics")}
    for group in manifests.groups:
        for peer, ports in allowed(manifests, node_labels(manifests, group.name), "Ingress"):
            if "podSelector" in peer and "namespaceSelector" not in peer:
                continue  # from inside
            space = _namespace(peer)
            if not space:
                found.append(_stranger(group.name, "everybody", ports))
            elif NAMESPACE in space:
                extra = {8265} if space[NAMESPACE] == OPERATOR else metrics | {8000}
                if ports is None or not ports <= extra:
                    found.append(_stranger(group.name, space[NAMESPACE], ports))
            elif ports is None or not ports <= CLIENT_PORTS or group.is_head:
                found.append(_stranger(group.name, str(space), ports))
    return found


def _stranger(group: str, who: str, ports: set[int] | None) -> Problem:
    what = "every port" if ports is None else f"ports {', '.join(map(str, sorted(ports)))}"
    return Problem("NetworkPolicy", "Ingress", f"{what} of {group} pods are open to {who}")


def check_routes(manifests: Manifests) -> list[Problem]:
    """Routes lead to the Service that KubeRay makes, at ports that it has, past no timeout."""
    service = manifests.rayservice["spec"].get("serveService", {}).get("metadata", {})
    name = service.get("name", f"{manifests.rayservice['metadata']['name']}-serve-svc")
    ports = {n: p for n, p in manifests.head.ports.items() if n == "serve" or "serve-" in n}
    wanted = {"HTTPRoute": ports.get("serve"), "GRPCRoute": ports.get("serve-grpc")}
    found = []
    for route in manifests.of_kind("HTTPRoute", "GRPCRoute"):
        for rule in route["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if (backend["name"], backend["port"]) != (name, wanted[route["kind"]]):
                    message = f"leads to {backend['name']}:{backend['port']}, not to {name}"
                    found.append(Problem(name_of(route), "spec.rules.backendRefs", message))
            for match in rule.get("matches", []):
                path = match.get("path", {}).get("value", "")
                if route["kind"] == "HTTPRoute" and path in ("/", "/metrics", "/-"):
                    message = f"{path} must stay inside: metrics and Serve's own paths"
                    found.append(Problem(name_of(route), "spec.rules.matches.path", message))
    hosts = [
        (r["kind"], h)
        for r in manifests.of_kind("HTTPRoute", "GRPCRoute")
        for h in r["spec"].get("hostnames", [])
    ]
    if len({h for _, h in hosts}) < len(hosts):
        found.append(Problem("GRPCRoute", "spec.hostnames", "shares a host with an HTTPRoute"))
    return found


def check_monitored_ports(manifests: Manifests) -> list[Problem]:
    """A PodMonitor names ports that the pods it selects have."""
    found = []
    for monitor in manifests.of_kind("PodMonitor"):
        selector = monitor["spec"]["selector"]
        chosen = [g for g in manifests.groups if selects(selector, node_labels(manifests, g.name))]
        if not chosen:
            found.append(Problem(name_of(monitor), "spec.selector", "selects no pod"))
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for group in chosen:
                if endpoint["port"] not in group.ports:
                    message = f"{group.name} pods have no port {endpoint['port']!r}"
                    found.append(Problem(name_of(monitor), "spec.podMetricsEndpoints", message))
    return found
