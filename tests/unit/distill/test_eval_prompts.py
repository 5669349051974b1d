"""Prompt files: every form of a line, what is wrong with others, and chats of several turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdist.api.tokenizer import Tokenizer
from specdist.distill.eval_prompts import (
    TURN_SLACK,
    EvalPrompt,
    first_prompts,
    fit,
    later_prompts,
    read_prompt_file,
    spread,
)
from specdist.errors import ConfigError
from tests.tiny_folders import save_tokenizer, words, write_jsonl


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def prompts_of(
    folder: Path, tokenizer: Tokenizer, *records: dict[str, Any]
) -> list[tuple[str, tuple[int, ...]]]:
    file = read_prompt_file(write_jsonl(folder / "p.jsonl", records))
    return [(p.category, p.token_ids) for p in first_prompts(file.conversations, tokenizer)]


def test_every_form_of_a_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "w7"}, {"role": "assistant", "content": "w8"}]
    found = prompts_of(
        tmp_path,
        tokenizer,
        {"turns": ["w7 w8", "w9"], "category": "writing", "kind": "other"},
        {"messages": [*messages, {"role": "user", "content": "w9"}], "kind": "chat"},
        {"prompt": "w7 w8"},
    )
    assert found == [
        ("writing", (3, 7, 8, 4)),
        ("chat", (3, 7, 4, 8, 3, 9, 4)),
        ("all", (7, 8)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Expecting"),
        ("[1]", "expected a JSON object, got list"),
        ('{"text": "x"}', r"needs one of turns, messages, prompt, has \['text'\]"),
        ('{"turns": ["x"], "prompt": "x"}', r"has \['turns', 'prompt'\]"),
        ('{"turns": []}', r"turns must be a list of texts, at least one, got \[\]"),
        ('{"turns": [1]}', "turns must be a list of texts"),
        ('{"prompt": ""}', "prompt must be a text"),
        ('{"messages": [{"role": "cat", "content": "x"}]}', r"messages\[0\].role"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "must end where"),
        ('{"prompt": "x", "category": 3}', "category must be a text, got 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "w7"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        read_prompt_file(path)
    assert f"{path}, line 2: " in caught.value.message


def test_absent_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the prompts .*No such file"):
        read_prompt_file(tmp_path / "no.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompt_file(tmp_path / "empty.jsonl")


def test_a_few_prompts_are_spread_over_the_file(tmp_path: Path) -> None:
    lines = [{"prompt": f"w{i}"} for i in range(10)]
    path = write_jsonl(tmp_path / "p.jsonl", lines)
    file = read_prompt_file(path, 4)
    assert [c.text for c in file.conversations] == ["w0", "w2", "w5", "w7"]
    assert file.num_lines == 10
    everything = read_prompt_file(path, 99).conversations
    assert len(everything) == 10
    with pytest.raises(ConfigError, match="num_prompts must be at least 1, got 0"):
        spread(everything, 0)


def test_too_long_prompts_are_left_out_and_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    records = [{"prompt": words([7] * n)} for n in (5, 20, 10)]
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", records))
    fitted = fit(file.conversations, tokenizer, False, max_tokens=8, context=18)
    assert [c.name for c in fitted.conversations] == ["line 1", "line 3"]
    assert (fitted.skipped, fitted.num_tokens) == (("line 2",), 18)
    with pytest.raises(ConfigError, match=r"none of the 3 prompts fits .* context of 12 tokens"):
        fit(file.conversations, tokenizer, False, max_tokens=8, context=12)


def test_later_turns_stand_behind_the_answers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    records = [
        {"turns": ["w10", "w11", "w12"], "category": "long"},
        {"prompt": "w20"},
        {"turns": ["w30", "w31"], "category": "short"},
    ]
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", records))
    asked: list[list[str]] = []

    def reply(prompts: list[EvalPrompt]) -> list[list[int]]:
        asked.append([p.name for p in prompts])
        return [[50 + len(asked), p.token_ids[-2]] for p in prompts]

    found = later_prompts(file.conversations, tokenizer, reply)
    assert asked == [["line 1", "line 3"], ["line 1, turn 2"]]
    assert [(p.name, p.category, p.token_ids) for p in found] == [
        ("line 1, turn 2", "long", (3, 10, 4, 51, 10, 3, 11, 4)),
        ("line 3, turn 2", "short", (3, 30, 4, 51, 30, 3, 31, 4)),
        ("line 1, turn 3", "long", (3, 10, 4, 51, 10, 3, 11, 4, 52, 11, 3, 12, 4)),
    ]
    fitted = fit(file.conversations, tokenizer, True, max_tokens=8, context=500)
    assert fitted.num_tokens >= len(found[-1].token_ids) + 8 + TURN_SLACK
    assert json.dumps(fitted.skipped) == "[]"
