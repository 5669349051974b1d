"""``models`` and ``check`` on tiny folders and on the demo target."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specdist.cli import main as command_line
from specdist.cli.check import read_settings
from specdist.cli.output import ShowProgress
from specdist.errors import ConfigError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specdist", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_pull_prints_the_folder(run: Run, demo_target_folder: Path) -> None:
    assert run("models", "pull", "demo") == (0, f"demo: {demo_target_folder}\n", "")


def test_pull_json(run: Run, demo_target_folder: Path) -> None:
    _, out, _ = run("models", "pull", "demo", str(demo_target_folder), "--json")
    assert [row["folder"] for row in json.loads(out)] == [str(demo_target_folder)] * 2


def test_pull_of_an_unknown_name_fails(run: Run) -> None:
    code, out, err = run("models", "pull", "demmo")
    assert (code, out) == (1, "")
    assert err.startswith("error: unknown model 'demmo'") and err.count("\n") == 1


def test_list_tells_what_is_absent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDIST_CACHE", str(tmp_path))
    code, out, _ = run("models", "list", "--json")
    target = json.loads(out)[0]
    assert code == 0
    assert (target["name"], target["ready"], target["problem"]) == ("demo", False, "is absent")


def test_list_shows_the_demo_target(run: Run, demo_target_folder: Path) -> None:
    _, out, _ = run("models", "list")
    assert f"{demo_target_folder}  ready" in out


def test_check_of_a_pair_that_fits(run: Run, demo_target_folder: Path) -> None:
    folder = str(demo_target_folder)
    code, out, err = run("check", "--target", folder, "--draft", folder)
    assert (code, err) == (0, "")
    assert "49152 shared token ids" in out and out.endswith("the pair fits\n")


def test_check_json(run: Run, demo_target_folder: Path, tmp_path: Path) -> None:
    folder = str(demo_target_folder)
    float32 = {"dtype": "float32"}  # auto differs by machine
    config = write_config(
        tmp_path, {"applications": [{"args": {"target": float32, "draft": float32}}]}
    )
    pair = ("--config", str(config), "--target", folder, "--draft", folder)
    _, out, _ = run("check", *pair, "--json")
    report = json.loads(out)
    assert report["pair"]["vocab_size"] == 49_152
    assert report["target_memory"]["weights_bytes"] == 538_060_032


def test_check_of_an_absent_model_fails(run: Run, tmp_path: Path) -> None:
    code, _, err = run("check", "--target", str(tmp_path))
    assert code == 1 and "has no config.json" in err


def write_config(folder: Path, content: object) -> Path:
    path = folder / "serve_config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_settings_come_from_the_serve_config(tmp_path: Path) -> None:
    args = {"target": {"model": "x", "max_model_len": 100}}
    path = write_config(tmp_path, {"applications": [{"args": args}]})
    assert read_settings(path).target.max_model_len == 100


@pytest.mark.parametrize("content", [{}, [], {"applications": []}, {"applications": [3]}, None])
def test_other_files_are_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConfigError, match="is no Ray Serve config"):
        read_settings(write_config(tmp_path, content))


def test_unknown_setting_fails_the_check(run: Run, tmp_path: Path) -> None:
    path = write_config(tmp_path, {"applications": [{"args": {"targett": {}}}]})
    code, _, err = run("check", "--config", str(path))
    assert code == 1 and "did you mean 'target'?" in err


def test_absent_config_fails_the_check(run: Run, tmp_path: Path) -> None:
    code, _, err = run("check", "--config", str(tmp_path / "no.yaml"))
    assert code == 1 and "cannot read" in err


def test_without_a_terminal_each_phase_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ShowProgress(None)
    for done in range(4):
        progress("download", done, 3)
    progress("convert", 0, 1)
    assert capsys.readouterr().err == "download\nconvert\n"
