"""The demo target's vocabulary, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdist.api.tokenizer import Tokenizer
from specdist.grammar import Grammars


@pytest.fixture(scope="session")
def tokenizer(demo_target_folder: Path) -> Tokenizer:
    return Tokenizer.load(demo_target_folder)


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_json, tokenizer.eos_token_ids)
