"""``specdist distill``: options and files become settings; progress is told."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from specdist.cli import distill, work_bar
from specdist.cli import main as command_line
from specdist.distill.settings import DistillSettings


def settings_of(*arguments: str) -> DistillSettings:
    """What the real command makes of its arguments."""
    commands = typer.main.get_command(command_line.app).commands  # type: ignore[attr-defined]
    values = dict(commands["distill"].make_context("distill", list(arguments)).params)
    config = values.pop("config")
    del values["as_json"]
    return distill.read_settings(config and Path(config), values)


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "distill.yaml"
    path.write_text("target: demo\nnum-tokens: 5\nlayers: [0, 3]\nprompts: [a.txt=2]\nslim: true\n")
    options = [
        "--num-tokens",
        "7",
        "--out",
        "o",
        "--exclude",
        "x",
        "--exclude",
        "y",
        "--loss",
        "tv",
    ]
    settings = settings_of("--config", str(path), *options)
    assert (settings.target, settings.out, settings.num_tokens) == ("demo", "o", 7)
    assert (settings.layers, settings.prompts, settings.slim) == ((0, 3), ("a.txt=2",), True)
    assert (settings.exclude, settings.loss) == (("x", "y"), "tv")
    assert not settings_of("--config", str(path), "--out", "o", "--no-slim").slim


def test_every_setting_is_an_option() -> None:
    assert settings_of("--target", "t", "--out", "o", "--from", "c").start_from == "c"
    options = {f.name for f in dataclasses.fields(DistillSettings)}
    command = typer.main.get_command(command_line.app).commands["distill"]  # type: ignore[attr-defined]
    assert options <= {p.name for p in command.params}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("target: t\nout: o\nnum_tokenz: 5\n", "did you mean 'num_tokens'?"),
        ("- a\n", "must hold settings by name, got list"),
        ("target: [", "cannot read"),
    ],
)
def test_what_is_wrong_in_the_file(
    content: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "distill.yaml"
    path.write_text(content)
    monkeypatch.setattr(sys, "argv", ["specdist", "distill", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 1
    assert message in capsys.readouterr().err


def test_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(work_bar.time, "monotonic", lambda: now)
    bar = work_bar.WorkBar(None)
    bar("answers", 0, 1000, "tokens")
    for done in range(100, 1001, 100):
        now += 10
        bar("answers", done, 1000, "tokens")
    bar("answers", 1000, 1000, "tokens", note="a note")
    assert capsys.readouterr().err.splitlines() == [
        "answers: 0/1,000 tokens",
        "answers: 300/1,000 tokens, 10 tokens/s, 70 s left",
        "answers: 600/1,000 tokens, 10 tokens/s, 40 s left",
        "answers: 900/1,000 tokens, 10 tokens/s, 10 s left",
        "answers: 1,000/1,000 tokens, 10 tokens/s, 0 s left",
        "answers: 1,000/1,000 tokens, 10 tokens/s, 0 s left; a note",
    ]


def test_a_resumed_phase_counts_its_own_rate() -> None:
    text = work_bar.describe(9000, 10_000, "tokens (x)", gained=10, seconds=20)
    assert text == "9,000/10,000 tokens (x), 0.5 tokens/s, 33 min left"
    assert work_bar.describe(0, 5, "files", 0, 1) == "0/5 files"
    assert work_bar.describe(40, 90, "", 40, 2) == "40/90, 20/s, 2 s left"
    assert "27 h 46 min left" in work_bar.describe(0, 100_001, "t", 1, 1)


def test_help_is_quick() -> None:
    """The settings, and so --help, load neither torch nor transformers."""
    names = ("torch", "transformers")
    code = f"import sys, {distill.__name__}\nprint(*[n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
