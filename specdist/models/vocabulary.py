"""The vocabulary of a model folder: which token text stands behind each id.

Read from tokenizer.json, so that nothing heavy is loaded; a folder with only an older
tokenizer format goes through transformers. Called by ``specdist.models.pair``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdist.errors import ModelError

SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class Vocabulary:
    """Token text by id. ``added`` are the ids of added (special) tokens."""

    texts: Mapping[int, str]
    added: frozenset[int]

    @property
    def num_ids(self) -> int:
        """One more than the largest id."""
        return max(self.texts, default=-1) + 1


def read_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a model folder; raises ModelError when it has no tokenizer."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _through_transformers(folder)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises plain Exception
        raise ModelError(f"cannot read {path}: {error}") from error
    return _vocabulary(tokenizer)


def _through_transformers(folder: Path) -> Vocabulary:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"{folder} has no tokenizer.json and no other tokenizer that can be read: "
            "a draft and a target are compared by their tokens"
        ) from error
    added = frozenset(loaded.added_tokens_decoder)
    return Vocabulary({i: text for text, i in loaded.get_vocab().items()}, added)


def _vocabulary(tokenizer) -> Vocabulary:  # type: ignore[no-untyped-def]
    added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
    texts = {i: text for text, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    return Vocabulary({**texts, **added}, frozenset(added))
