"""Cached folders: whole or not there, noticed when damaged, built by one process only."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from specdist.errors import ModelError
from specdist.models.cache import MANIFEST, cache_root, ensure_folder, folder_problem

SOURCE = {"version": "1"}


def build(folder: Path) -> None:
    (folder / "weights").write_bytes(b"12345678")
    (folder / "config.json").write_text("{}")


def fail(folder: Path) -> None:
    raise AssertionError("must not be built again")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return ensure_folder(tmp_path / "models" / "a", SOURCE, build)


def test_built_once(folder: Path) -> None:
    assert folder_problem(folder, SOURCE, verify=True) is None
    assert ensure_folder(folder, SOURCE, fail) == folder


def test_leaves_only_the_folder_and_its_lock(folder: Path) -> None:
    assert sorted(p.name for p in folder.parent.iterdir()) == ["a", "a.lock"]


def test_files_of_a_shared_cache_are_readable_for_others(folder: Path) -> None:
    assert (folder / "weights").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda f: (f / "weights").unlink(), "lacks weights"),
        (lambda f: (f / "weights").write_bytes(b"1234"), "has 4 bytes of weights, expected 8"),
        (lambda f: (f / MANIFEST).unlink(), "has no readable"),
        (lambda f: (f / MANIFEST).write_text("{"), "has no readable"),
        (lambda f: (f / MANIFEST).write_text('{"files": 3}'), "has no readable"),
    ],
)
def test_damage_is_noticed_at_once_and_repaired(folder: Path, damage, problem: str) -> None:  # type: ignore[no-untyped-def]
    damage(folder)
    assert problem in (folder_problem(folder, SOURCE) or "")
    ensure_folder(folder, SOURCE, build)
    assert folder_problem(folder, SOURCE, verify=True) is None


def test_same_size_damage_is_noticed_by_the_full_check(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1234567X")
    assert folder_problem(folder, SOURCE) is None
    assert "damaged weights" in (folder_problem(folder, SOURCE, verify=True) or "")
    ensure_folder(folder, SOURCE, build, verify=True)
    assert (folder / "weights").read_bytes() == b"12345678"


def test_another_source_builds_again(folder: Path) -> None:
    ensure_folder(folder, {"version": "2"}, build)
    assert folder_problem(folder, SOURCE) == "was made from another version of its source"


def test_failed_build_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "weights").write_bytes(b"1234")
        raise ModelError("no more")

    with pytest.raises(ModelError, match="no more"):
        ensure_folder(tmp_path / "a", SOURCE, half)
    assert [p.name for p in tmp_path.iterdir()] == ["a.lock"]
    assert folder_problem(ensure_folder(tmp_path / "a", SOURCE, build), SOURCE) is None


def test_left_over_of_a_killed_build_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".building-a-12345"
    left.mkdir()
    (left / "half").write_text("x")
    ensure_folder(tmp_path / "a", SOURCE, build)
    assert not left.exists()


def test_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    def no_space(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"cannot write model folder .*No space left"):
        ensure_folder(tmp_path / "a", SOURCE, no_space)


def build_slowly(folder: Path) -> None:
    with (folder.parent / "builds").open("a") as file:
        file.write("x")
    build(folder)


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    target = tmp_path / "a"
    starts = [
        context.Process(target=ensure_folder, args=(target, SOURCE, build_slowly)) for _ in range(4)
    ]
    for process in starts:
        process.start()
    for process in starts:
        process.join(30)
    assert [process.exitcode for process in starts] == [0, 0, 0, 0]
    assert (tmp_path / "builds").read_text() == "x"


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDIST_CACHE", "/a")
    assert cache_root() == Path("/a")
    monkeypatch.delenv("SPECDIST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_root() == Path("/b/specdist")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "specdist"
