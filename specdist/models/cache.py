"""The user's cache of finished model folders: made once, whole or not there.

A folder is built beside its final place and renamed when it is complete. Its manifest
names what it was made from and the size and SHA-256 of every file, so that a half or
damaged folder is noticed at the next start and made again. Knows no model format.
Called by the modules of ``specdist.models`` that make folders.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specdist.errors import ModelError

logger = logging.getLogger(__name__)

MANIFEST = "specdist_manifest.json"
LOCK_TIMEOUT_S = 1800.0  # the longest that one start waits for another's download
PARTIAL_PREFIX = ".building-"


def cache_root() -> Path:
    """``$SPECDIST_CACHE``, else ``$XDG_CACHE_HOME/specdist``, else ``~/.cache/specdist``."""
    if chosen := os.environ.get("SPECDIST_CACHE"):
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "specdist"


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_problem(
    folder: Path, source: Mapping[str, str] | None = None, verify: bool = False
) -> str | None:
    """Why a finished folder cannot be used as it is; None when it can.

    Cheap by default (presence and size of each file). With ``verify`` every file is
    read and compared with its SHA-256. ``source`` is what the folder must be made from.
    """
    if not folder.is_dir():
        return "is absent"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = dict(manifest["files"])
        made_from = dict(manifest["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"has no readable {MANIFEST}"
    if source is not None and made_from != dict(source):
        return "was made from another version of its source"
    for name, entry in files.items():
        if problem := _file_problem(folder / name, entry, verify):
            return problem
    return None


def _file_problem(path: Path, entry: Mapping[str, object], verify: bool) -> str | None:
    if not path.is_file():
        return f"lacks {path.name}"
    if path.stat().st_size != entry.get("size"):
        return f"has {path.stat().st_size} bytes of {path.name}, expected {entry.get('size')}"
    if verify and file_sha256(path) != entry.get("sha256"):
        return f"holds a damaged {path.name} (its SHA-256 differs)"
    return None


def ensure_folder(
    folder: Path,
    source: Mapping[str, str],
    build: Callable[[Path], None],
    verify: bool = False,
) -> Path:
    """Return ``folder`` complete, calling ``build(empty_folder)`` when it is not.

    Safe when several processes start at once: one builds, the others wait for it.
    """
    if folder_problem(folder, source, verify) is None:
        return folder
    with locked(folder):
        problem = folder_problem(folder, source, verify)
        if problem is None:  # another process made it while we waited
            return folder
        if folder.exists():
            logger.warning("model folder %s %s: making it again", folder, problem)
        _build(folder, source, build)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that guards ``path`` against other processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise ModelError(
            f"another process has held {path}.lock for {LOCK_TIMEOUT_S:.0f} s; "
            "end it or wait until it is done"
        ) from None


def _build(folder: Path, source: Mapping[str, str], build: Callable[[Path], None]) -> None:
    prefix = f"{PARTIAL_PREFIX}{folder.name}-"
    for left in folder.parent.glob(f"{prefix}*"):  # a start that was killed half way
        shutil.rmtree(left, ignore_errors=True)
    partial = folder.parent / f"{prefix}{os.getpid()}"
    try:
        partial.mkdir()
        build(partial)
        write_manifest(partial, source)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise ModelError(f"cannot write model folder {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_manifest(folder: Path, source: Mapping[str, str]) -> None:
    """Describe every file of a folder, so that ``folder_problem`` can check it."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        path.chmod(0o644)  # safetensors writes 0600; a cache may be shared
        files[str(path.relative_to(folder))] = {
            "size": path.stat().st_size,
            "sha256": file_sha256(path),
        }
    text = json.dumps({"source": dict(source), "files": files}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")
