"""Every overlay passes every check, as the cluster would get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.render_serve_config import overlays, patch_files, render
from tests.k8s.gate.checks import CHECKS
from tests.k8s.gate.manifests import quantity, seconds
from tests.k8s.gate.overlays import ROOT, manifests_of
from tests.k8s.gate.problems import Check
from tests.k8s.gate.schemas import check_core_objects
from tests.k8s.gate.security import _container_rules, _pod_rules

OVERLAYS = [path.name for path in overlays()]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_has_no_problem(overlay: str, check: str) -> None:
    problems = CHECKS[check](manifests_of(f"overlays/{overlay}"))
    assert [str(problem) for problem in problems] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rayservice_follows_the_crd(overlay: str, crd_check: Check) -> None:
    problems = crd_check(manifests_of(f"overlays/{overlay}"))
    assert [str(problem) for problem in problems] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_config_is_the_one_of_the_root_with_patches(overlay: str) -> None:
    folder = ROOT / "k8s" / "overlays" / overlay
    text = (folder / "serve_config.yaml").read_text()
    assert text == render(folder), "run: make k8s-render"
    assert manifests_of(f"overlays/{overlay}").rayservice["spec"]["serveConfigV2"] == text


def test_every_serve_patch_is_used() -> None:
    used = {file for overlay in overlays() for file in patch_files(overlay)}
    assert used == set((ROOT / "k8s").rglob("serve_patch.yaml"))


def test_every_component_is_in_the_production_overlay() -> None:
    """What no overlay names would be checked by nothing."""
    text = (ROOT / "k8s/overlays/prod/kustomization.yaml").read_text()
    components = sorted(p.parent.name for p in ROOT.glob("k8s/components/*/kustomization.yaml"))
    assert [name for name in components if f"components/{name}\n" not in text] == []


def test_every_yaml_file_of_a_component_is_listed() -> None:
    unlisted = []
    for kustomization in ROOT.glob("k8s/**/kustomization.yaml"):
        text = kustomization.read_text()
        for file in kustomization.parent.glob("*.yaml"):
            if file.name not in (kustomization.name, "serve_patch.yaml") and file.name not in text:
                unlisted.append(str(file.relative_to(ROOT)))
    assert unlisted == []


def test_the_job_that_fetches_models_is_valid_and_restricted() -> None:
    manifests = manifests_of("jobs/fetch-models")
    (job,) = manifests.of_kind("Job")
    pod = job["spec"]["template"]["spec"]
    rules = list(_pod_rules(pod))
    assert check_core_objects(manifests) == []
    assert rules == []
    (claim,) = manifests_of("overlays/prod").of_kind("PersistentVolumeClaim")
    volume = pod["volumes"][0]["persistentVolumeClaim"]
    assert volume == {"claimName": claim["metadata"]["name"]}
    (prod_image,) = {g.container["image"] for g in manifests_of("overlays/prod").groups}
    assert pod["containers"][0]["image"] == prod_image


def test_images_carry_the_version_of_the_package() -> None:
    from specdist import __version__

    for overlay in OVERLAYS:
        for group in manifests_of(f"overlays/{overlay}").groups:
            tag = group.container["image"].rpartition(":")[2]
            assert tag.removesuffix("-demo") == __version__


def test_ray_is_the_version_that_is_tested() -> None:
    pinned = [s for s in Path(ROOT / "constraints.txt").read_text().split() if "ray==" in s]
    for overlay in OVERLAYS:
        assert f"ray=={manifests_of(f'overlays/{overlay}').cluster['rayVersion']}" in pinned


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("4", 4), ("2Gi", 2 * 1024**3), ("1.5k", 1500), (3, 3), ("1Mi", 1024**2)],
)
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "four", "2 Gi", "1Qi"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


@pytest.mark.parametrize(("text", "value"), [("60m", 3600), ("1h30m", 5400), ("45", 45), ("2s", 2)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


def test_a_container_without_a_context_breaks_every_rule_of_restricted() -> None:
    broken = {field for field, _ in _container_rules({}, {})}
    assert broken == {
        *("allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile.type"),
        "capabilities.drop",
    }
