"""docs/distill.md: its three commands work for a new target, and its list of options is whole.

Run as a script it writes the list of options anew.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import pytest

from specdist.cli import main as command_line
from specdist.distill.settings import DistillSettings, flag_of, shown_default

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "distill.md"
COMMANDS = re.compile(r"<!-- quick start -->\n```bash\n(.*?)```", re.DOTALL)
OPTIONS = re.compile(
    r"(<!-- options -->\n.*?\|---\|---\|---\|\n)(.*?)(<!-- /options -->)", re.DOTALL
)
# A user waits for hours, a test does not.
QUICK = "--num-tokens 400 --shard-answers 32 --max-new-tokens 8,16 --max-prompt-tokens 160 "
QUICK += "--max-turn-tokens 16 --batch-size 16 --num-steps 5 --batch-tokens 1024 --held-out 0.2 "
QUICK += "--num-threads 1"


def option_rows() -> str:
    """The table of options, from the settings themselves."""
    rows = []
    for entry in dataclasses.fields(DistillSettings):
        default = shown_default(entry)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{flag_of(entry)}` | {shown} | {entry.metadata['help']} |\n")
    return "".join(rows)


def test_the_list_of_options_is_whole() -> None:
    found = OPTIONS.search(DOCUMENT.read_text())
    assert found is not None
    assert found[2] == option_rows(), f"run: python {Path(__file__).relative_to(ROOT)}"


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return int(ended.value.code or 0)


def test_three_commands_make_a_draft_for_a_tiny_qwen2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.byte_folders import save_byte_folder

    target = save_byte_folder(tmp_path / "qwen2", "qwen2", layers=4)
    monkeypatch.chdir(tmp_path)
    found = COMMANDS.search(DOCUMENT.read_text())
    assert found is not None
    commands = found[1].strip().splitlines()
    assert len(commands) == 3
    for command in commands:
        quick = f" {QUICK}" if command.startswith("specdist distill") else ""
        assert run(command.replace("TARGET", str(target)) + quick, monkeypatch) == 0
        if "--dry-run" in command:
            assert "student_flops_per_token: " in capsys.readouterr().out
            assert not (tmp_path / "my-draft").exists()
    assert capsys.readouterr().out.endswith("the pair fits\n")
    for name in ("draft/model.safetensors", "draft/README.md", "report.html", "provenance.json"):
        assert (tmp_path / "my-draft" / name).is_file(), name


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(OPTIONS.sub(lambda m: m[1] + option_rows() + m[3], text))
