"""The graph: three deployments with the names of the interface, and strict settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.app import build_app
from deployments.pinning import MIN_ONGOING_REQUESTS
from specdist.config import AppConfig
from specdist.errors import ConfigError

CONFIG = Path(__file__).resolve().parents[3] / "serve_config.yaml"


def test_names_limits_and_draining() -> None:
    router = build_app({"router": {"max_answer_s": 100.0}})._bound_deployment
    found = {router.name: router}
    for argument in router.init_args:
        bound = getattr(argument, "_bound_deployment", None)
        if bound is not None:
            found[bound.name] = bound
    assert set(found) == {"Router", "Draft", "Target"}
    for deployment in found.values():
        config = deployment._deployment_config
        assert config.max_ongoing_requests >= MIN_ONGOING_REQUESTS
        assert config.graceful_shutdown_timeout_s > 100.0


def test_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'served_model_name'"):
        build_app({"served_model_nam": "x"})


def test_shipped_config_is_valid_for_serve_and_for_us() -> None:
    schema = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    (application,) = schema.applications
    assert application.import_path == "deployments.app:build_app"
    assert {d.name for d in application.deployments} == {"Router", "Draft", "Target"}
    assert (schema.http_options.host, schema.http_options.port) == ("127.0.0.1", 8000)
    assert schema.grpc_options.port == 9000
    AppConfig.from_mapping(application.args)
