"""The component's objects: valid for the operator, and pointed at what the base deploys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudcoil.models.prometheus_operator import v1, v1alpha1

from scripts.monitoring.dashboard import FILE
from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.overlays import manifests_of

OVERLAYS = ("staging", "prod")
MODELS: dict[str, Any] = {
    "PodMonitor": v1.PodMonitor,
    "PrometheusRule": v1.PrometheusRule,
    "ScrapeConfig": v1alpha1.ScrapeConfig,
}
MIB = 2**20


@pytest.fixture(scope="module", params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return manifests_of(f"overlays/{request.param}")


def unknown_keys(given: Any, understood: Any, where: str = "") -> list[str]:
    """Keys that the operator's types do not know: they would be dropped in silence."""
    if isinstance(given, dict):
        if not isinstance(understood, dict):
            return [where]
        return [
            found
            for key, value in given.items()
            for found in unknown_keys(value, understood.get(key), f"{where}.{key}")
        ]
    if isinstance(given, list):
        pairs = zip(given, understood or [None] * len(given), strict=True)
        return [k for i, (a, b) in enumerate(pairs) for k in unknown_keys(a, b, f"{where}[{i}]")]
    return [where] if understood is None else []


def check(document: dict[str, Any]) -> list[str]:
    model = MODELS[document["kind"]].model_validate(document)
    return unknown_keys(document, model.model_dump(mode="json", by_alias=True, exclude_none=True))


def test_objects_are_what_the_operator_knows(manifests: Manifests) -> None:
    documents = manifests.of_kind(*MODELS)
    assert {d["kind"] for d in documents} == set(MODELS)
    assert [problem for d in documents for problem in check(d)] == []


def test_a_misspelt_key_is_found(manifests: Manifests) -> None:
    (scrape,) = manifests.of_kind("ScrapeConfig")
    wrong = {**scrape, "spec": {**scrape["spec"], "metricPath": "/metrics"}}
    assert check(wrong) == [".spec.metricPath"]


def test_the_application_is_scraped_once_through_its_service(manifests: Manifests) -> None:
    """One target of role Service, however many routers answer behind it; no pod is asked."""
    (scrape,) = manifests.of_kind("ScrapeConfig")
    (discovery,) = scrape["spec"]["kubernetesSDConfigs"]
    assert discovery["role"] == "Service"
    service = manifests.rayservice["spec"]["serveService"]
    assert discovery["namespaces"]["names"] == [manifests.rayservice["metadata"]["namespace"]]
    keep = next(r for r in scrape["spec"]["relabelings"] if r.get("action") == "keep")
    name, _, port = keep["regex"].partition(";")
    assert name == service["metadata"]["name"]
    assert port in {p["name"] for p in service["spec"]["ports"]}
    application_port = {p["port"] for p in service["spec"]["ports"] if p["name"] == port}
    for monitor in manifests.of_kind("PodMonitor"):
        for group in manifests.groups:
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                assert group.ports.get(endpoint["port"]) not in application_port


def test_the_scrape_gets_the_labels_that_rules_rely_on(manifests: Manifests) -> None:
    (scrape,) = manifests.of_kind("ScrapeConfig")
    set_here = {r["targetLabel"]: r for r in scrape["spec"]["relabelings"] if "targetLabel" in r}
    assert set_here["job"]["replacement"] == "specdist"  # up{job="specdist"}
    assert set_here["namespace"]["sourceLabels"] == ["__meta_kubernetes_namespace"]
    for monitor in manifests.of_kind("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            labels = {r["targetLabel"] for r in endpoint["relabelings"]}
            assert labels == {"ray_io_cluster", "ray_io_group"}


def test_prometheus_may_reach_every_port_that_it_scrapes(manifests: Manifests) -> None:
    (policy,) = [
        d
        for d in manifests.of_kind("NetworkPolicy")
        if d["metadata"]["name"] == "specdist-allow-prometheus"
    ]
    open_ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    names = {
        endpoint["port"]
        for monitor in manifests.of_kind("PodMonitor")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    } | {"serve"}
    scraped = {group.ports[name] for group in manifests.groups for name in names & set(group.ports)}
    assert scraped == open_ports


def test_dashboard_is_in_a_config_map_that_grafana_finds(manifests: Manifests) -> None:
    (config,) = [
        d for d in manifests.of_kind("ConfigMap") if d["metadata"]["name"] == "specdist-dashboard"
    ]
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["data"] == {FILE.name: FILE.read_text()}
    assert json.loads(config["data"][FILE.name])["uid"] == "specdist"
    assert len(FILE.read_bytes()) < MIB // 4  # kubectl apply keeps it a second time, in 256 KiB
