"""Marks tests by the folder they stand in, and finds the shared data when it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
FOLDER_MARKS = ("unit", "contracts", "integration", "e2e")


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
