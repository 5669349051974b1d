"""Data shards: the target's answers on disk as token ids, nothing else.

A shard is one safetensors file, ``shard-00012.safetensors``, that appears whole or not at
all. Flat arrays: ``tokens`` of all answers end to end, each with its prompt (uint16 where
the vocabulary allows, else int32); ``lengths``, ``answer_starts`` int32, ``temperatures``
float32 (0: greedy), ``ended`` uint8 (1: the last token is an end token), ``kinds`` uint16
(index into the metadata's list), ``groups`` int64 (hash of the prompt's origin: answers of
one group share a side of the held-out split), ``seeds`` int64. The
metadata's only entry is JSON: format, kinds, digest of the settings, number type, prompts
dropped. Knows no model. Written by ``answers``, read by
``dataset``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdist.distill.files import written_whole
from specdist.errors import ConfigError

FORMAT = "specdist-answers-1"
METADATA = "specdist"
Ids = npt.NDArray[np.int64]


class Example(NamedTuple):
    """One prompt with the target's answer."""

    tokens: Ids  # prompt, then answer
    answer_start: int
    temperature: float
    kind: str
    group: int
    ended: bool
    seed: int

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.answer_start


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{number:05d}.safetensors"


def group_of(text: str) -> int:
    """The number that stands for a prompt's origin."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def write_shard(
    path: Path, examples: Sequence[Example], vocab_size: int, about: Mapping[str, Any]
) -> None:
    """Write one shard; see the module's docstring for the layout."""
    kinds = sorted({e.kind for e in examples})
    number_type = np.uint16 if vocab_size <= 1 << 16 else np.int32
    tokens = [e.tokens for e in examples]
    arrays = {
        "tokens": np.concatenate(tokens or [np.zeros(0, np.int64)]).astype(number_type),
        "lengths": np.array([len(t) for t in tokens], np.int32),
        "answer_starts": np.array([e.answer_start for e in examples], np.int32),
        "temperatures": np.array([e.temperature for e in examples], np.float32),
        "ended": np.array([e.ended for e in examples], np.uint8),
        "kinds": np.array([kinds.index(e.kind) for e in examples], np.uint16),
        "groups": np.array([e.group for e in examples], np.int64),
        "seeds": np.array([e.seed for e in examples], np.int64),
    }
    # One entry: the format keeps several in no order, and equal shards must be equal files.
    text = json.dumps({"format": FORMAT, "kinds": kinds, **about}, sort_keys=True)
    with written_whole(path) as partial:
        save_file(arrays, partial, metadata={METADATA: text})


def read_shard(path: Path, settings_digest: str | None = None) -> list[Example]:
    """Read one shard; ConfigError when it is none, or was made with other settings."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            if about.get("format") != FORMAT:
                raise ConfigError(f"{path} must be of format {FORMAT}, got {about.get('format')}")
            made_with = about.get("settings")
            if settings_digest is not None and made_with != settings_digest:
                raise ConfigError(
                    f"{path} was made with settings {made_with}, those of this run are "
                    f"{settings_digest}: use another --out or --data"
                )
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read shard {path}: {error}") from error
    kinds = about["kinds"]
    ends = np.cumsum(flat["lengths"])
    tokens = np.split(flat["tokens"].astype(np.int64), ends[:-1]) if len(ends) else []
    names = ("answer_starts", "temperatures", "kinds", "groups", "ended", "seeds")
    rows = zip(tokens, *(flat[name].tolist() for name in names), strict=True)
    return [
        Example(ids, start, temperature, kinds[kind], group, bool(ended), seed)
        for ids, start, temperature, kind, group, ended, seed in rows
    ]


def shard_numbers(folder: Path) -> list[int]:
    """The numbers of the shards that are there, sorted."""
    return sorted(int(p.stem.split("-")[1]) for p in folder.glob("shard-*.safetensors"))


def first_missing(folder: Path) -> int:
    """The number of the first shard that is not there."""
    there = set(shard_numbers(folder))
    return next(n for n in range(len(there) + 1) if n not in there)


def texts_path(folder: Path, number: int) -> Path:
    """Prompts and answers of a shard as text, for follow-ups; kept until they are made."""
    return folder / f"texts-{number:05d}.jsonl"


def num_answer_tokens(path: Path) -> int:
    """Answer tokens of a shard, without reading its tokens."""
    with safe_open(path, framework="numpy") as file:
        return int(file.get_tensor("lengths").sum() - file.get_tensor("answer_starts").sum())
