"""Every check of the gate by name. To add one: a function Manifests -> problems, and a line."""

from __future__ import annotations

from tests.k8s.gate import (
    availability,
    bounds,
    kuberay,
    network,
    nodes,
    placement,
    schemas,
    security,
    serve,
)
from tests.k8s.gate.problems import Check

CHECKS: dict[str, Check] = {
    "core objects": schemas.check_core_objects,
    "operator rules": kuberay.check_operator_rules,
    "autoscaler": kuberay.check_autoscaler,
    "ports": kuberay.check_ports,
    "Serve schema": serve.check_serve_schema,
    "Serve autoscaling": serve.check_autoscaling,
    "settings": serve.check_settings,
    "imports": serve.check_imports,
    "endpoints": serve.check_endpoints,
    "placement": placement.check_placement,
    "head without work": placement.check_head_without_work,
    "replica bounds": bounds.check_replica_bounds,
    "one replica per pod": bounds.check_one_replica_per_pod,
    "devices": bounds.check_devices,
    "scaling target": bounds.check_scaling_target,
    "idle time": bounds.check_idle_and_downscale,
    "drain": availability.check_drain,
    "upgrade": availability.check_upgrade_keeps_streams,
    "slow start": availability.check_slow_start,
    "ready means serving": availability.check_ready_means_serving,
    "head may go": availability.check_head_may_go,
    "disruption budgets": availability.check_disruption_budgets,
    "priorities": availability.check_priorities,
    "pod security": security.check_pod_security,
    "images": security.check_images,
    "secrets": security.check_secrets,
    "service accounts": security.check_service_accounts,
    "closed by default": network.check_closed_by_default,
    "open ways": network.check_open_ways,
    "strangers": network.check_strangers,
    "routes": network.check_routes,
    "monitored ports": network.check_monitored_ports,
    "GPU nodes": nodes.check_gpu_nodes,
    "node pools": nodes.check_node_pools,
}
