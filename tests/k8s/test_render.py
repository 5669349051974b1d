"""How Serve patches are merged: what a typo must not do is make something new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.render_serve_config import PatchError, merge, overlays, patch_files
from tests.k8s.gate.overlays import ROOT


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        (
            {"a": [{"name": "x", "v": 1}, {"name": "y", "v": 1}]},
            {"a": [{"name": "y", "v": 2}]},
            {"a": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]},
        ),
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
    ],
)
def test_merge(base: Any, patch: Any, merged: Any) -> None:
    assert merge(base, patch) == merged


def test_merge_leaves_its_arguments_alone() -> None:
    base = {"a": {"b": 1}, "c": [{"name": "x"}]}
    merge(base, {"a": {"b": 2}, "c": [{"name": "x", "v": 1}]})
    assert base == {"a": {"b": 1}, "c": [{"name": "x"}]}


def test_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(PatchError, match=r"'Drafts'.*Router, Draft"):
        merge({"d": [{"name": "Router"}, {"name": "Draft"}]}, {"d": [{"name": "Drafts"}]})


def test_taking_away_what_is_not_there_is_an_error() -> None:
    with pytest.raises(PatchError, match=r"num_replica .*there are num_replicas"):
        merge({"num_replicas": 1}, {"num_replica": None})


def test_patches_follow_what_the_overlay_names() -> None:
    (dev,) = (path for path in overlays() if path.name == "dev")
    (prod,) = (path for path in overlays() if path.name == "prod")

    def names(overlay: Path) -> list[str]:
        return [str(file.parent.relative_to(ROOT / "k8s")) for file in patch_files(overlay)]

    assert names(dev) == ["base", "overlays/dev"]
    assert names(prod) == ["base", "components/gpu", "components/models-pvc", "overlays/prod"]
