"""The draft that the repository ships, completed with its target's embeddings.

The shipped folder holds the layers, the final norm and maybe a reduced output head; the
embedding matrix, the largest part, is the target's own and is not stored twice. Knows
no download. Called by ``specdist.models.demo``.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from specdist.errors import ModelError
from specdist.models.cache import file_sha256
from specdist.models.checkpoint import (
    EMBEDDINGS,
    LM_HEAD,
    output_token_ids,
    read_json,
    read_tensors,
    text_config,
)

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CARRIED_FILES = (*TOKENIZER_FILES, "generation_config.json")
WEIGHTS = "model.safetensors"


def shipped_folder(name: str) -> Path:
    """Where a shipped model lies: beside the package, or in the installation's share/."""
    places = list(_places())
    for place in places:
        if (place / name / "config.json").is_file():
            return place / name
    looked = ", ".join(str(place / name) for place in places)
    raise ModelError(f"the shipped model {name} is not there; looked in {looked}")


def _places() -> Iterator[Path]:
    if chosen := os.environ.get("SPECDIST_MODELS"):
        yield Path(chosen).expanduser()
    yield PACKAGE_PARENT / "models"  # a checkout, or an editable install of one
    yield Path(sysconfig.get_path("data")) / "share" / "specdist" / "models"


def shipped_version(folder: Path) -> str:
    """Changes when the shipped weights or their config change."""
    parts = [file_sha256(folder / name) for name in (WEIGHTS, "config.json")]
    return "-".join(parts)


def complete_draft(shipped: Path, target: Path, folder: Path) -> None:
    """Write the shipped draft as a normal checkpoint into the empty ``folder``."""
    config = read_json(shipped / "config.json")
    note = config.get("specdist")
    if not isinstance(note, dict) or note.get("embeddings") != "target":
        raise ModelError(
            f"{shipped}/config.json must say specdist.embeddings 'target', got {note!r}"
        )
    _check_fit(shipped, target)
    _write_weights(shipped, target, folder / WEIGHTS)
    for name in ("config.json", "README.md"):
        if (shipped / name).is_file():
            shutil.copyfile(shipped / name, folder / name)
    for name in CARRIED_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)
    output_token_ids(folder, read_tensors(folder))


def _check_fit(shipped: Path, target: Path) -> None:
    config = text_config(read_json(shipped / "config.json"))
    expected = (config.get("vocab_size"), config.get("hidden_size"))
    embeddings = read_tensors(target).get(EMBEDDINGS)
    if embeddings is None or embeddings.shape != expected:
        shape = None if embeddings is None else embeddings.shape
        raise ModelError(
            f"draft {shipped} wants the embeddings of its target as {expected} "
            f"(vocab_size, hidden_size), {target} has {shape}"
        )
    if LM_HEAD not in read_tensors(shipped) and not config.get("tie_word_embeddings"):
        raise ModelError(f"draft {shipped} has no {LM_HEAD} and does not tie its embeddings")


def _write_weights(shipped: Path, target: Path, file: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = load_file(shipped / WEIGHTS)
    where = read_tensors(target)[EMBEDDINGS].file
    with safe_open(where, framework="pt") as weights:
        tensors[EMBEDDINGS] = weights.get_tensor(EMBEDDINGS)
    save_file(tensors, file, metadata={"format": "pt"})
