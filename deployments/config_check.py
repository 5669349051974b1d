"""Checks a Serve config before anything starts: a typo ends the start at once, with its name.

Serve itself ignores keys that it does not know, tries a broken application several times
and then waits for ever. Called by ``deployments.launch``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

from ray.serve import config as serve_config
from ray.serve import schema

from specdist.config import AppConfig, SpeculationConfig, from_mapping
from specdist.errors import ConfigError
from specdist.models import check_pair, resolve_model

IMPORT_PATH = "deployments.app:build_app"
DEPLOYMENTS = ("Router", "Draft", "Target")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigError or ModelError for what could never be served."""
    _check_keys(config, schema.ServeDeploySchema, "")
    _check_keys(config.get("http_options"), schema.HTTPOptionsSchema, "http_options")
    _check_keys(config.get("grpc_options"), schema.gRPCOptionsSchema, "grpc_options")
    for application in config.get("applications") or ():
        name = f"application {application.get('name', '')!r}"
        _check_keys(application, schema.ServeApplicationSchema, name)
        if application.get("import_path") == IMPORT_PATH:
            _check_application(application)


def _check_application(application: Mapping[str, Any]) -> None:
    settings = AppConfig.from_mapping(application.get("args") or {})
    for deployment in application.get("deployments") or ():
        _check_deployment(deployment, settings)
    target = resolve_model(settings.target.model)
    if "draft_model" in settings.speculation.drafters:
        draft = resolve_model(settings.draft.model)
        check_pair(target, draft, settings.target.max_model_len, settings.draft.max_model_len)


def _check_deployment(deployment: Mapping[str, Any], settings: AppConfig) -> None:
    name = deployment.get("name")
    if name not in DEPLOYMENTS:
        raise ConfigError(f"deployment must be one of {', '.join(DEPLOYMENTS)}, got {name!r}")
    _check_keys(deployment, schema.DeploymentSchema, name)
    _check_keys(deployment.get("ray_actor_options"), schema.RayActorOptionsSchema, name)
    autoscaling = deployment.get("autoscaling_config")
    _check_keys(autoscaling, serve_config.AutoscalingConfig, f"{name}.autoscaling_config")
    user_config = deployment.get("user_config")
    if name == "Router" and user_config:
        raise ConfigError(f"Router.user_config must be absent, got {user_config!r}")
    check_user_config(user_config, settings, f"{name}.user_config")


def check_user_config(
    user_config: Mapping[str, Any] | None, settings: AppConfig, where: str
) -> None:
    """Raise ConfigError for what a replica could not take over its settings."""
    user_config = _mapping(user_config, where)
    _check_names(user_config, ("speculation",), where)
    where = f"{where}.speculation"
    changes = _mapping(user_config.get("speculation"), where)
    from_mapping(SpeculationConfig, {**dataclasses.asdict(settings.speculation), **changes}, where)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, which may be absent."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {value!r}")
    return value or {}


def _check_keys(values: Mapping[str, Any] | None, kind: Any, where: str) -> None:
    _check_names(values, kind.model_fields, where)


def _check_names(values: object, known: Collection[str], where: str) -> None:
    """Names that are not known; a value that is no mapping, such as "auto", is Serve's to check."""
    for key in values if isinstance(values, Mapping) else ():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"unknown key {key!r}{f' in {where}' if where else ''}; {hint}")
