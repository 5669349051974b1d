"""Tiny model folders with a real tokenizer.json, config and safetensors headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

HIDDEN = 4
MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """``make_folder(name, words, added=(), rows=None, tensors=None, **config)``."""

    def make(
        name: str,
        words: Sequence[str],
        added: Sequence[str] = (),
        rows: int | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
        **config: object,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "w0"))
        tokenizer.add_special_tokens([AddedToken(text) for text in added])
        tokenizer.save(str(folder / "tokenizer.json"))
        num_rows = rows or len(words) + len(added)
        settings = {
            "vocab_size": num_rows,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "eos_token_id": 0,
            "tie_word_embeddings": True,
            **config,
        }
        (folder / "config.json").write_text(json.dumps(settings))
        weights = {"model.embed_tokens.weight": np.ones((num_rows, HIDDEN), np.float32)}
        save_file({**weights, **(tensors or {})}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def words() -> list[str]:
    return [f"w{i}" for i in range(20)]
