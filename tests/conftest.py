"""Marks tests by folder; finds the shared data and the demo pair; sets hypothesis up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from specdist.models import resolve_model

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
FOLDER_MARKS = ("unit", "contracts", "integration", "k8s", "page", "e2e")

# CI: the same examples in every run, and no failures for a slow shared machine.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marker of its folder."""
    for item in items:
        for mark in FOLDER_MARKS:
            if mark in item.path.relative_to(ROOT).parts:
                item.add_marker(getattr(pytest.mark, mark))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with prompts and texts; tests that need it skip without it."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"shared data folder {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def demo_target_folder() -> Path:
    """The demo target as a float32 checkpoint; pulled and converted when not cached."""
    return resolve_model("demo")


@pytest.fixture(scope="session")
def demo_draft_folder() -> Path:
    """The shipped demo draft, completed with the target's embeddings."""
    return resolve_model("demo-draft")
