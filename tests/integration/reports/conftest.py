"""Models of the report tests: tiny random ones, and the real target loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import specdist.workers.target_worker
import tests.pair
from specdist.engine.loader import LoadedModel, load_model, prepare
from tests.integration.reports.real_target import RealTarget
from tests.integration.reports.rigs import steady_cost
from tests.tiny_models import build_tiny


@pytest.fixture(scope="module", autouse=True)
def quick_pairs() -> Iterator[None]:
    """One thread, loaded models are taken as they are, and no profiling of every engine."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tests.pair, "prepare", lambda m: m if isinstance(m, LoadedModel) else prepare(m)
        )
        patch.setattr(
            specdist.workers.target_worker, "profile_engine", lambda engine: steady_cost()
        )
        yield


@pytest.fixture(scope="session")
def real(demo_target_folder: Path) -> RealTarget:
    """The demo target, its tokenizer, and its plain answers to the reference prompts."""
    loaded = load_model(demo_target_folder, "cpu", "float32", num_threads=1)
    return RealTarget(loaded, demo_target_folder)


@pytest.fixture(scope="session")
def tiny() -> Any:
    """A tiny target with varied answers."""
    torch.set_num_threads(1)
    return prepare(build_tiny("llama", vocab_size=97, layers=2, seed=1))


@pytest.fixture(scope="session")
def bad(demo_target_folder: Path) -> Any:
    """D-BAD for the real target: a tiny random model over the same vocabulary."""
    return prepare(build_tiny("llama", vocab_size=49_152, layers=1, hidden=16, max_len=8192))
