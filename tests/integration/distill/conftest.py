"""A tiny target that reads any text, and one data folder of its answers for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.byte_folders import save_byte_folder
from tests.integration.distill.distill_rig import run


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, 260 tokens, ChatML."""
    return save_byte_folder(tmp_path_factory.mktemp("target"), layers=4, max_len=512)


@pytest.fixture(scope="session")
def answered(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a small run; to be read only."""
    out = tmp_path_factory.mktemp("answered")
    run(target, out, only="answers")
    return out / "data"
