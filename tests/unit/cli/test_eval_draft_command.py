"""``specdist eval-draft`` on tiny models: what it prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdist.cli import main as command_line
from tests.tiny_folders import save_folder, words, write_jsonl

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specdist", "eval-draft", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    save_folder(folder / "target", layers=1, seed=1)
    records = [{"turns": [words([20, 31])], "category": c} for c in ("qa", "<rag>|x")]
    write_jsonl(folder / "p.jsonl", [*records, {"prompt": words([5, 6, 7] * 40)}])
    return folder


def arguments(folder: Path, *more: str) -> list[str]:
    target, prompts = str(folder / "target"), str(folder / "p.jsonl")
    quick = ["--max-tokens", "6", "--trees", "chain:2", "--threads", "1", "--dtype", "float32"]
    return [target, "--target", target, "--prompts", prompts, *quick, *more]


def test_tables_on_stdout_and_phases_on_stderr(run: Run, folder: Path) -> None:
    code, out, err = run(*arguments(folder, "ngram"))
    assert code == 0
    for title in ("Ranking by predicted speed-up", "Agreement with the target", "By category"):
        assert title in out
    assert "1. " in out and "ngram" in out and "<rag>|x" in out
    assert "plain answers at temperature 0.8\n" in err


def test_json_holds_everything(run: Run, folder: Path) -> None:
    code, out, _ = run(*arguments(folder, "--json", "--temperatures", "0", "--num-prompts", "2"))
    report = json.loads(out)
    (draft,) = report["drafts"]
    assert code == 0
    assert report["prompts"]["num_prompts"] == 2 and report["prompts"]["num_lines"] == 3
    assert [r["shape"] for r in draft["runs"]] == ["chain:2"]
    assert draft["agreement"][0]["overall"]["hit"] == {"1": 1.0, "2": 1.0, "4": 1.0, "8": 1.0}
    assert report["ranking"][0]["draft"] == str(folder / "target")


@pytest.mark.parametrize(("suffix", "marks"), [(".md", "| --- |"), (".html", "<table>")])
def test_report_files(run: Run, folder: Path, tmp_path: Path, suffix: str, marks: str) -> None:
    out = tmp_path / f"report{suffix}"
    assert run(*arguments(folder, "--temperatures", "0", "--out", str(out)))[0] == 0
    text = out.read_text()
    assert marks in text and "Ranking by predicted speed-up" in text
    escaped = "<rag>\\|x" if suffix == ".md" else "&lt;rag&gt;|x"
    assert escaped in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--prompts", "/no/such.jsonl"], "cannot read the prompts /no/such.jsonl"),
        (["--trees", "bush:3"], "chain:LENGTH or tree:NODES"),
        (["--temperatures", "x"], "temperatures must be numbers"),
        (["--rule", "lucky"], "rule must be one of coupled"),
        (["--target", "/no/model"], "unknown model '/no/model'"),
        (["--num-prompts", "0"], "num_prompts must be at least 1, got 0"),
        (["--out", "report.pdf"], "out must end in .json, .md, .html"),
        (["--out", "/no/such/r.md"], "out must lie in a folder that exists"),
        (["--max-tokens", "600"], "none of the 3 prompts fits the target's context of 512"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Run, folder: Path, changes: list[str], message: str
) -> None:
    code, out, err = run(*arguments(folder, *changes))
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_without_prompts_the_error_says_what_to_give(run: Run) -> None:
    code, out, err = run("demo-draft", "--json")
    assert code == 1
    assert "--prompts FILE.jsonl" in err
    assert json.loads(out)["error"]["type"] == "config_error"


def test_skipped_prompts_are_told(run: Run, folder: Path) -> None:
    code, out, _ = run(*arguments(folder, "--max-tokens", "400", "--temperatures", "0"))
    assert code == 0
    assert "Left out, too long for the target's context: 1 (line 3)" in out.replace("\n", " ")


def test_an_answer_unlike_plain_decoding_fails_the_command(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that speculation moves: the pair is made to emit another first token."""
    from specdist.distill.eval_acceptance import MeasuredPair

    answer_all = MeasuredPair.answer_all

    def wrong(self: MeasuredPair, *given: object) -> list[object]:
        answers = answer_all(self, *given)  # type: ignore[arg-type]
        answers[0].tokens[0] = (answers[0].tokens[0] + 1) % 96
        return list(answers)

    monkeypatch.setattr(MeasuredPair, "answer_all", wrong)
    code, out, err = run(*arguments(folder, "--temperatures", "0"))
    assert code == 1
    assert "1 greedy answers differ from plain ones" in err
    assert "Answers that differ from plain decoding's" in out
