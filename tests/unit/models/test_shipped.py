"""The shipped draft: completed with its target's embeddings, and made again on change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdist.errors import ModelError
from specdist.models import demo
from specdist.models.pair import check_pair
from specdist.models.shipped import complete_draft, shipped_folder, shipped_version
from tests.unit.models.conftest import HIDDEN, MakeFolder

IDS = np.array([5, 2, 11], np.int64)


@pytest.fixture
def target(make_folder: MakeFolder, words: list[str]) -> Path:
    folder = make_folder("target", words)
    rows = np.arange(20 * HIDDEN, dtype=np.float32).reshape(20, HIDDEN)
    save_file({"model.embed_tokens.weight": rows}, folder / "model.safetensors")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def ship(folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: object) -> Path:
    folder.mkdir(parents=True)
    settings = {
        "vocab_size": 20,
        "hidden_size": HIDDEN,
        "max_position_embeddings": 32,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
        "specdist": {"embeddings": "target", "target": "demo"},
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    head = {"lm_head.weight": np.ones((3, HIDDEN), np.float16), "specdist.output_token_ids": IDS}
    norm = {"model.norm.weight": np.ones(HIDDEN, np.float16)}
    save_file({**norm, **(head if tensors is None else tensors)}, folder / "model.safetensors")
    return folder


def test_completed_draft_is_a_normal_folder(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "complete"
    folder.mkdir()
    complete_draft(ship(tmp_path / "shipped"), target, folder)
    tensors = load_file(folder / "model.safetensors")
    expected = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert np.array_equal(tensors["model.embed_tokens.weight"], expected)
    assert sorted(tensors) == [
        *("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"),
        "specdist.output_token_ids",
    ]
    assert (folder / "chat_template.jinja").is_file()
    report = check_pair(target, folder)
    assert (report.vocab_size, report.num_draft_outputs, report.draft_max_len) == (20, 3, 32)


def test_draft_with_tied_embeddings_needs_no_head(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "complete"
    folder.mkdir()
    complete_draft(ship(tmp_path / "shipped", {}, tie_word_embeddings=True), target, folder)
    assert check_pair(target, folder).num_draft_outputs == 20


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (None, {"specdist": None}, "must say specdist.embeddings 'target', got None"),
        (None, {"hidden_size": 8}, r"as \(20, 8\).* has \(20, 4\)"),
        ({}, {}, "has no lm_head.weight and does not tie"),
        ({"lm_head.weight": np.ones((3, HIDDEN), np.float32)}, {}, "which tokens they are"),
    ],
)
def test_unfit_draft_is_refused(
    target: Path, tmp_path: Path, tensors: dict | None, config: dict, message: str
) -> None:
    folder = tmp_path / "complete"
    folder.mkdir()
    with pytest.raises(ModelError, match=message):
        complete_draft(ship(tmp_path / "shipped", tensors, **config), target, folder)


def test_absent_draft_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDIST_MODELS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"shipped model absent is not there; looked in .*nowhere"):
        shipped_folder("absent")


def test_demo_draft_is_made_again_when_the_shipped_file_changes(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDIST_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("SPECDIST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "ensure_target", lambda progress, verify: target)
    shipped = ship(tmp_path / "models" / demo.DRAFT_FOLDER)
    first = shipped_version(shipped)
    folder = demo.ensure_draft()
    before = (folder / "model.safetensors").stat().st_ino
    assert (demo.ensure_draft() / "model.safetensors").stat().st_ino == before

    norm = {"model.norm.weight": np.zeros(HIDDEN, np.float16)}
    head = {"lm_head.weight": np.ones((3, HIDDEN), np.float16), "specdist.output_token_ids": IDS}
    save_file({**norm, **head}, shipped / "model.safetensors")
    assert shipped_version(shipped) != first
    again = load_file(demo.ensure_draft() / "model.safetensors")
    assert not again["model.norm.weight"].any()
