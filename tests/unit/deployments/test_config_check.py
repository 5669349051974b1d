"""Every mistake in a Serve config is named before anything starts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config_check import check_config
from specdist.errors import SpecdistError

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = yaml.safe_load((ROOT / "serve_config.yaml").read_text())


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The shipped config with one value changed or added."""
    config = copy.deepcopy(SHIPPED)
    place = config
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return dict(config)


def test_the_shipped_config_is_right() -> None:
    check_config(SHIPPED)


APP = ("applications", 0)
ROUTER = (*APP, "deployments", 0)
DRAFT = (*APP, "deployments", 1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("grpc_option",), {}, "unknown key 'grpc_option'; did you mean 'grpc_options'?"),
        (("http_options", "prot"), 1, "unknown key 'prot' in http_options; did you mean 'port'?"),
        ((*APP, "arg"), {}, "unknown key 'arg' in application 'specdist'; did you mean 'args'?"),
        ((*APP, "args", "draft", "modell"), "x", "unknown setting 'draft.modell'"),
        ((*APP, "args", "draft", "model"), "/no/such", "unknown model '/no/such'"),
        ((*ROUTER, "user_config"), {"speculation": {}}, "Router.user_config must be absent"),
        ((*DRAFT, "num_replica"), 2, "unknown key 'num_replica' in Draft"),
        ((*DRAFT, "name"), "Drafts", "one of Router, Draft, Target, got 'Drafts'"),
        ((*DRAFT, "ray_actor_options", "num_gpu"), 1, "unknown key 'num_gpu' in Draft"),
        ((*DRAFT, "autoscaling_config"), {"min_replica": 1}, "Draft.autoscaling_config"),
        ((*DRAFT, "user_config"), {"speculaton": {}}, "unknown key 'speculaton' in Draft.user"),
        ((*DRAFT, "user_config"), "off", "Draft.user_config must be a mapping, got 'off'"),
        ((*DRAFT, "user_config", "speculation"), "off", "speculation must be a mapping, got 'off'"),
        ((*DRAFT, "user_config", "speculation", "mod"), "off", "user_config.speculation.mod"),
        ((*DRAFT, "user_config", "speculation", "mode"), "fast", "mode must be one of"),
    ],
)
def test_each_mistake_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(SpecdistError) as caught:
        check_config(changed(path, value))
    assert message in str(caught.value)


def test_other_applications_are_left_to_serve() -> None:
    other = {"name": "other", "import_path": "somewhere:app", "args": {"anything": 1}}
    check_config({**SHIPPED, "applications": [other]})
