"""Is the Serve config right: Serve's own schema, made strict, and the application's settings.

Serve ignores keys that it does not know (``num_replica``, ``grpc_option``), so a typo
would be served with a default. Here unknown keys are errors.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from deployments.config_check import DEPLOYMENTS, check_user_config
from specdist.config import AppConfig
from specdist.errors import ConfigError
from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.problems import Problem

SUBJECT = "RayService/specdist"
GRPC_SERVICE = "deployments.grpc_proxy.add_generation_service"


def _problem(field: str, message: str) -> Problem:
    return Problem(SUBJECT, f"serveConfigV2.{field}" if field else "serveConfigV2", message)


def check_serve_schema(manifests: Manifests) -> list[Problem]:
    """Serve takes it, and knows every key in it."""
    text = manifests.rayservice["spec"].get("serveConfigV2") or ""
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return [_problem("", f"is no YAML: {error}")]
    if not isinstance(config, dict) or not config.get("applications"):
        return [_problem("applications", "there is none")]
    found = [_problem(field, "Serve does not know this key") for field in _unknown(config)]
    try:
        ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        found += [_problem(_dotted(e["loc"]), e["msg"]) for e in error.errors()]
    return found


def _dotted(parts: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in parts)


def _unknown(config: Mapping[str, Any]) -> list[str]:
    return list(_unknown_keys(ServeDeploySchema, config, ""))


def _unknown_keys(model: type[BaseModel], values: Any, where: str) -> Iterator[str]:
    """Dotted keys in ``values`` that the model has no field for."""
    if not isinstance(values, Mapping):
        return
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    fields |= dict(model.model_fields)
    for key, value in values.items():
        field = f"{where}.{key}" if where else str(key)
        if key not in fields:
            yield field
            continue
        inner = _model_in(fields[key].annotation)
        if inner is None:
            continue
        for number, item in enumerate(value if isinstance(value, list) else [value]):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            suffix = f"[{name}]" if isinstance(value, list) else ""
            yield from _unknown_keys(inner, item, field + suffix)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names, however it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(inner) for inner in typing.get_args(annotation))
    return next((model for model in models if model is not None), None)


def check_autoscaling(manifests: Manifests) -> list[Problem]:
    """Each deployment scales by itself, within bounds that Serve takes."""
    found = []
    for name in DEPLOYMENTS:
        deployment = manifests.deployments.get(name)
        if deployment is None:
            message = "is missing: it would run with one replica, on any pod (1559)"
            found.append(_problem(f"deployments[{name}]", message))
            continue
        where = f"deployments[{name}].autoscaling_config"
        settings = deployment.get("autoscaling_config")
        if not settings:
            found.append(_problem(where, "is missing: every deployment scales on its own"))
            continue
        if "num_replicas" in deployment:
            found.append(_problem(f"deployments[{name}].num_replicas", "contradicts autoscaling"))
        try:
            AutoscalingConfig.model_validate(settings)
        except ValidationError as error:
            found += [_problem(f"{where}.{_dotted(e['loc'])}", e["msg"]) for e in error.errors()]
    for name in set(manifests.deployments) - set(DEPLOYMENTS):
        found.append(_problem(f"deployments[{name}]", "the application has no such deployment"))
    return found


def check_settings(manifests: Manifests) -> list[Problem]:
    """The arguments of the application and each user_config, as the replicas will read them."""
    found = []
    try:
        config = AppConfig.from_mapping(manifests.arguments)
    except ConfigError as error:
        found.append(_problem("applications[specdist].args", error.message))
        config = AppConfig()
    for name, deployment in manifests.deployments.items():
        try:
            check_user_config(deployment.get("user_config") or {}, config, f"{name}.user_config")
        except ConfigError as error:
            found.append(_problem(f"deployments[{name}].user_config", error.message))
        shutdown_s = deployment.get("graceful_shutdown_timeout_s", config.router.max_answer_s)
        if shutdown_s < config.router.max_answer_s:
            message = f"cuts answers of up to {config.router.max_answer_s:g} s, got {shutdown_s} s"
            found.append(_problem(f"deployments[{name}].graceful_shutdown_timeout_s", message))
    return found


def check_imports(manifests: Manifests) -> list[Problem]:
    """What Serve imports by name is there, in the image and not fetched at run time."""
    found = []
    for application in manifests.serve.get("applications") or []:
        found += _importable("applications.import_path", application.get("import_path", ""), ":")
        if (application.get("runtime_env") or {}).get("working_dir"):
            message = "the image carries the code: proxies import it and have no runtime_env"
            found.append(_problem("applications.runtime_env.working_dir", message))
    functions = manifests.serve.get("grpc_options", {}).get("grpc_servicer_functions") or []
    if GRPC_SERVICE not in functions:
        found.append(_problem("grpc_options.grpc_servicer_functions", f"lacks {GRPC_SERVICE}"))
    for path in functions:
        found += _importable("grpc_options.grpc_servicer_functions", path, ".")
    for name, deployment in manifests.deployments.items():
        policy = (deployment.get("autoscaling_config") or {}).get("policy") or {}
        if path := policy.get("policy_function"):
            separator = ":" if ":" in path else "."
            where = f"deployments[{name}].autoscaling_config.policy.policy_function"
            found += _importable(where, path, separator)
    return found


def _importable(field: str, path: str, separator: str) -> list[Problem]:
    module, _, attribute = path.rpartition(separator)
    try:
        getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        return [_problem(field, f"cannot import {path!r}: {error}")]
    return []


def check_endpoints(manifests: Manifests) -> list[Problem]:
    """Pods are reached from other pods, and every pod with a replica has a proxy."""
    found = []
    host = manifests.serve.get("http_options", {}).get("host")
    if host != "0.0.0.0":
        found.append(_problem("http_options.host", f"must be 0.0.0.0, got {host!r}"))
    location = manifests.serve.get("proxy_location")
    if location != "EveryNode":
        message = f"must be EveryNode, got {location!r}: else workers are never Ready (4994)"
        found.append(_problem("proxy_location", message))
    return found
