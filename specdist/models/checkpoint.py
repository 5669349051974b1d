"""What a checkpoint folder says about itself without loading its weights.

Reads config.json and the headers of the safetensors files: shapes, sizes, and the small
map of a reduced output vocabulary. Knows no cache and no pair. Called by
``specdist.models.pair``, ``shipped`` and ``memory``.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdist.errors import ModelError

OUTPUT_IDS = "specdist.output_token_ids"  # row i of lm_head is the logit of this token
LM_HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor's place in a checkpoint."""

    file: Path
    dtype: str  # as safetensors names it: F32, BF16, I64 ...
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * DTYPE_BYTES.get(self.dtype, 1)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder; raises ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is no model folder: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model (nested in some families)."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, following its index when it has one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = any(folder.glob("*.bin"))
        hint = "; weights are never read from pickle (.bin)" if pickled else ""
        raise ModelError(f"{folder} has no safetensors weights{hint}")
    for file in files:
        if not file.is_file():
            raise ModelError(f"{folder} lacks {file.name}, which its index names")
    return files


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Names and shapes of one safetensors file; checks that the file is whole."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > MAX_HEADER_BYTES:
                raise ModelError(f"{file} is no safetensors file: header of {length} bytes")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        tensors = {
            name: TensorInfo(file, entry["dtype"], tuple(entry["shape"]))
            for name, entry in header.items()
        }
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read the header of {file}: {error}") from error
    if file.stat().st_size != 8 + length + end:
        raise ModelError(
            f"{file} is damaged: {file.stat().st_size} bytes, its header says {8 + length + end}"
        )
    return tensors


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint folder, by name."""
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        tensors.update(read_header(file))
    return tensors


def output_token_ids(folder: Path, tensors: Mapping[str, TensorInfo]) -> list[int] | None:
    """The map of a reduced output vocabulary; None when all tokens have a logit.

    Raises ModelError when lm_head has fewer rows than the vocabulary and no map tells
    which tokens they are, or when the map does not fit them.
    """
    vocab_size = vocab_rows(folder)
    head = tensors.get(LM_HEAD)
    info = tensors.get(OUTPUT_IDS)
    if info is None:
        if head is not None and head.shape[0] < vocab_size:
            raise ModelError(
                f"{folder}: {LM_HEAD} has {head.shape[0]} rows for a vocabulary of {vocab_size} "
                f"and there is no tensor {OUTPUT_IDS} to say which tokens they are"
            )
        return None
    if head is None or info.shape != (head.shape[0],):
        rows = "no rows" if head is None else f"{head.shape[0]} rows"
        raise ModelError(f"{folder}: {OUTPUT_IDS} has shape {info.shape}, {LM_HEAD} has {rows}")
    if info.dtype not in ("I64", "I32"):
        raise ModelError(f"{folder}: {OUTPUT_IDS} must be integers, got {info.dtype}")
    return _checked_ids(folder, _read_ints(info), vocab_size)


def _read_ints(info: TensorInfo) -> list[int]:
    from safetensors import safe_open

    with safe_open(info.file, framework="numpy") as file:
        return [int(i) for i in file.get_tensor(OUTPUT_IDS)]


def _checked_ids(folder: Path, ids: list[int], vocab_size: int) -> list[int]:
    for row, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise ModelError(
                f"{folder}: {OUTPUT_IDS}[{row}] is {token_id}, "
                f"it must be at least 0 and below {vocab_size}"
            )
    if len(set(ids)) != len(ids):
        seen: set[int] = set()
        twice = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise ModelError(f"{folder}: {OUTPUT_IDS} names token {twice} more than once")
    return ids


def vocab_rows(folder: Path) -> int:
    """Rows of the embedding matrix, by the config (padding rows included)."""
    size = text_config(read_json(folder / "config.json")).get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"{folder}/config.json: vocab_size must be at least 1, got {size!r}")
    return size
