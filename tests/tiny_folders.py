"""Tiny random models as whole model folders: weights, and a tokenizer of one word per token.

Word ``w17`` is token 17; a chat is ``w3`` before a user's words, ``w4`` before the
assistant's. For tests that begin with text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from tests.tiny_models import save_tiny

VOCAB = 96
TEMPLATE = (
    "{% for m in messages %}{{ 'w3 ' if m.role == 'user' else 'w4 ' }}{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w4{% endif %}"
)


def save_folder(folder: Path, *, vocab_size: int = VOCAB, **model: Any) -> Path:
    """``save_tiny`` with a tokenizer and a chat template."""
    save_tiny(folder, vocab_size=vocab_size, **model)
    return save_tokenizer(folder, vocab_size)


def save_tokenizer(folder: Path, vocab_size: int = VOCAB) -> Path:
    """Only the tokenizer's files."""
    tokenizer = Tokenizer(WordLevel({f"▁w{i}": i for i in range(vocab_size)}, "▁w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "▁w2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def words(ids: Sequence[int]) -> str:
    """Text that the tokenizer turns into these ids."""
    return " ".join(f"w{i}" for i in ids)


def write_jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """One record per line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
