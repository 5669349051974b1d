"""Prompt files: every format, what particular files need, and the built pool."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from specdist.distill.pool import build_pool
from specdist.distill.progress import silent
from specdist.distill.prompt_files import read_documents, read_prompts, split_weight
from specdist.distill.prompt_types import Message
from specdist.distill.recipes import MGSM_EXCLUDED
from specdist.distill.settings import DistillSettings
from specdist.errors import ConfigError

ROWS = [
    {"prompt": "Say hello."},
    {"question": "What is tea?", "answer": "A drink."},
    {"instruction": "Add these.", "input": "2 and 3"},
    {"text": "Tell me more."},
    {"content": "A bare content."},
    {"turns": ["First turn.", "Second turn."]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    {"conversations": [{"from": "human", "value": "One"}, {"from": "gpt", "value": "not ours"}]},
]


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(path: Path) -> list[str]:
    return [p.messages[-1].content for p in read_prompts(path, "k")]


def test_every_form_of_a_row(tmp_path: Path) -> None:
    prompts = list(read_prompts(write_lines(tmp_path / "a.jsonl", ROWS), "k"))
    assert [p.messages[-1].content for p in prompts] == [
        *("Say hello.", "What is tea?", "Add these.\n\n2 and 3", "Tell me more."),
        *("A bare content.", "First turn.", "Hi", "One"),
    ]
    assert prompts[5].next_turns == ("Second turn.",)
    assert prompts[6].messages[0] == Message("system", "Be brief.")
    assert all(m.role != "assistant" for p in prompts for m in p.messages), (
        "only the target answers"
    )


def test_lists_texts_and_tables(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS[:2]))
    (tmp_path / "a.txt").write_text("One\nprompt.\n\n\nAnother.\n")
    (tmp_path / "a.tsv").write_text("Eins\t1\nZwei\t2\n")
    assert texts(tmp_path / "a.json") == ["Say hello.", "What is tea?"]
    assert texts(tmp_path / "a.txt") == ["One\nprompt.", "Another."]
    assert texts(tmp_path / "a.tsv") == ["Eins", "Zwei"]


def test_data_sets_in_parquet_and_both_kinds_of_arrow(tmp_path: Path) -> None:
    table = pyarrow.table({"prompt": ["One.", "Two."], "extra": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.ipc.new_stream(str(tmp_path / "s.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pyarrow.ipc.new_file(str(tmp_path / "f.arrow"), table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "s.arrow", "f.arrow"):
        assert texts(tmp_path / name) == ["One.", "Two."], name


def test_mgsm_rows_that_the_benchmark_asks_too_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mgsm_de.tsv"
    path.write_text("".join(f"Frage {i}\t{i}\n" for i in range(250)))
    prompts = list(read_prompts(path, "mgsm_de"))
    assert len(prompts) == 250 - len(MGSM_EXCLUDED)
    assert not {f"Frage {i}" for i in MGSM_EXCLUDED} & {p.messages[0].content for p in prompts}
    assert {p.kind for p in prompts} == {"mgsm"}
    assert {d.language for d in read_documents(path)} == {"German"}


def test_documents_come_in_pieces_that_lose_nothing(tmp_path: Path) -> None:
    lines = [f"line {i} of a text without any empty line" for i in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    pieces = [d.text for d in read_documents(tmp_path / "a.txt")]
    assert max(map(len, pieces)) <= 4000
    assert "\n".join(pieces).split("\n") == lines


def test_weights_and_what_is_wrong(tmp_path: Path) -> None:
    assert split_weight("a/b.txt=2.5") == (Path("a/b.txt"), 2.5)
    assert split_weight("a=b.txt") == (Path("a=b.txt"), 1.0)
    with pytest.raises(ConfigError, match="weight of x must be above 0, got -1"):
        split_weight("x=-1")
    with pytest.raises(ConfigError, match="holds no prompt"):
        list(read_prompts(write_lines(tmp_path / "b.jsonl", [{"other": "x"}]), "k"))
    (tmp_path / "c.jsonl").write_text('{"prompt": \n')
    with pytest.raises(ConfigError, match=r"c\.jsonl, line 1"):
        list(read_prompts(tmp_path / "c.jsonl", "k"))


def settings_for(folder: Path, **more: object) -> DistillSettings:
    return DistillSettings(target="t", out=str(folder / "out"), **more)  # type: ignore[arg-type]


def test_the_pool_drops_repeated_and_excluded_prompts_and_counts_them(tmp_path: Path) -> None:
    asked = [
        {"prompt": "Explain how rain forms."},
        {"prompt": "explain  how rain forms"},
        {"prompt": "Please tell me at once who sang the first song of the show?"},
        {"prompt": "Who sang the first song"},
    ]
    write_lines(tmp_path / "p.jsonl", asked)
    write_lines(tmp_path / "bench.jsonl", [{"turns": ["Who sang the first song of the show?"]}])
    settings = settings_for(
        tmp_path, prompts=(f"{tmp_path / 'p.jsonl'}=3",), exclude=(str(tmp_path / "bench.jsonl"),)
    )
    pool = build_pool(settings, silent)
    kept = [p.messages[0].content for p in pool.sources[0].prompts]
    assert kept == ["Explain how rain forms.", "Who sang the first song"]
    assert pool.sources[0].weight == 3
    record = json.loads((settings.data_folder / "prompts.json").read_text())
    assert record["counts"] == [{"kept": 2, "repeated": 1, "excluded": 1}]


def test_a_pool_of_other_files_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", ROWS[:1])
    settings = settings_for(tmp_path, prompts=(str(path),))
    first = build_pool(settings, silent)
    assert build_pool(settings, silent).digest == first.digest
    write_lines(path, ROWS[:2])
    with pytest.raises(ConfigError, match="was made with sources"):
        build_pool(settings, silent)
