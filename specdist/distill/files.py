"""Small files of a run, written whole or not at all: JSON, text, and the hash of a model.

A kill at any moment, or a power failure, leaves the old file or the new one. Knows nothing
of what is in them. Used all over ``specdist.distill``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdist.errors import ConfigError
from specdist.models.checkpoint import weight_files

SAMPLE_BYTES = 1 << 20


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file, beside its place; it is renamed when all of it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    yield partial
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_text(path: Path, text: str) -> None:
    """The text as a file."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """One JSON document, indented."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json_file(path: Path) -> Any:
    """The JSON document in a file; ConfigError when it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """One JSON value a line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_rows(path: Path) -> list[Any]:
    """The values of a file with one JSON value a line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def digest(value: Any) -> str:
    """A short name for plain data: the same data, the same name."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_digest(folder: Path) -> str:
    """A name for a model folder: config, tokenizer, and both ends of every weight file."""
    hashed = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        if (folder / name).is_file():
            hashed.update((folder / name).read_bytes())
    for path in weight_files(folder):
        size = path.stat().st_size
        hashed.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            hashed.update(file.read(SAMPLE_BYTES))
            file.seek(max(0, size - SAMPLE_BYTES))
            hashed.update(file.read(SAMPLE_BYTES))
    return hashed.hexdigest()[:16]
