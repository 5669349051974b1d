"""A model's name in the settings turned into a folder with a normal checkpoint.

The one place that knows every form of a name. Called by deployments when a replica
starts, by the command line and by tests; never on the path of a request.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from specdist.errors import ModelError
from specdist.models import demo
from specdist.models.cache import cache_root, ensure_folder
from specdist.models.checkpoint import read_json, weight_files
from specdist.models.gguf import convert_gguf
from specdist.models.hub import GGUF_ID, HUB_ID, fetch_from_hub, fetch_gguf_from_hub
from specdist.models.progress import Progress, log_phases

FORMS = "'demo', 'demo-draft', a local folder, a .gguf file, or a hub id owner/name"


def resolve_model(
    name_or_path: str | Path, progress: Progress = log_phases, verify: bool = False
) -> Path:
    """The folder (config.json, safetensors, tokenizer) that a model name stands for.

    Downloads and converts what is not there yet; a second call is cheap. ``verify``
    reads every file of a cached folder again. Raises ModelError.
    """
    name = str(name_or_path)
    if name == demo.TARGET:
        return demo.ensure_target(progress, verify)
    if name == demo.DRAFT:
        return demo.ensure_draft(progress, verify)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked_folder(path.resolve())
    if path.is_file():
        return _from_gguf(path.resolve(), progress, verify)
    if GGUF_ID.fullmatch(name):
        return _from_gguf(fetch_gguf_from_hub(name), progress, verify)
    if HUB_ID.fullmatch(name):
        return fetch_from_hub(name)
    raise ModelError(f"unknown model {name!r}: expected {FORMS}")


def _checked_folder(folder: Path) -> Path:
    read_json(folder / "config.json")
    weight_files(folder)
    return folder


def _from_gguf(file: Path, progress: Progress, verify: bool) -> Path:
    """Converted once for each version of the file (its place, size and change time)."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{file} is no GGUF file; expected {FORMS}")
    stat = file.stat()
    source = {"gguf": str(file), "size": str(stat.st_size), "changed_ns": str(stat.st_mtime_ns)}
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    folder = cache_root() / "models" / f"{file.stem.lower()}-{digest}"
    return ensure_folder(folder, source, lambda new: convert_gguf(file, new, progress), verify)
