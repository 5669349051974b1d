"""Fixtures of the API tests: a model folder and its card."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdist.api.model_card import ModelCard
from specdist.api.tokenizer import Tokenizer
from tests.unit.api.fakes import write_model_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def card(model_folder: Path) -> ModelCard:
    return ModelCard.load(model_folder, name="test-model", max_model_len=128)


@pytest.fixture(scope="session")
def tokenizer(card: ModelCard) -> Tokenizer:
    return card.tokenizer
