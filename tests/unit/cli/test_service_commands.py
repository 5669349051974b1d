"""``generate`` and ``chat`` against a stand-in for the client."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import specdist.client
from specdist.cli import main as command_line
from specdist.client import Answer, Chunk, SpeculationStats, Usage
from specdist.errors import OverloadedError, UnavailableError

USAGE = Usage(5, 3, 8, 0, 2, 1)
STATS = SpeculationStats("coupled", True, 2, 2, 3, 2, 0, 2 / 3, 2.0, 2 / 3, (0, 2))
Run = Callable[..., tuple[int, str, str]]


class FakeClient:
    """Says "one two" and remembers what it was asked."""

    asked: list[tuple[Any, dict[str, Any]]]
    address: str
    failure: Exception | None = None

    def __init__(self, address: str) -> None:
        type(self).address = address

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stream(self, prompt: Any, **options: Any) -> Iterator[Chunk]:
        self._take(prompt, options)
        yield Chunk("r", "one", (1,), (), 0)
        yield Chunk("r", " two", (2, 3), (), 1, "stop", USAGE, STATS, 7)

    def generate(self, prompt: Any, **options: Any) -> Answer:
        self._take(prompt, options)
        return Answer("r", "one two", (1, 2, 3), (), "stop", USAGE, STATS, 7, "demo")

    def _take(self, prompt: Any, options: dict[str, Any]) -> None:
        self.asked.append((prompt, options))
        if self.failure:
            raise self.failure


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.delenv("SPECDIST_ADDRESS", raising=False)
    kind = type("Client", (FakeClient,), {"asked": []})
    monkeypatch.setattr(specdist.client, "Client", kind)
    return kind


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specdist", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_generate_streams_the_text(client: type[FakeClient], run: Run) -> None:
    assert run("generate", "hello") == (0, "one two\n", "")
    assert client.asked == [("hello", {"max_tokens": 128})]
    assert client.address == "127.0.0.1:9000"


def test_generate_passes_every_option_on(client: type[FakeClient], run: Run) -> None:
    arguments = "--temperature 0 --top-p 0.9 --top-k 5 --seed 3 --stop a --stop b --rule rejection"
    more = "--no-speculate --num-speculative-tokens 2 --timeout 9 --max-tokens 4 --address h:1"
    assert run("generate", "hello", *arguments.split(), *more.split())[0] == 0
    assert client.asked[0][1] == {
        "max_tokens": 4,
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 3,
        "stop": ["a", "b"],
        "timeout_s": 9.0,
        "speculation": {"rule": "rejection", "max_tokens": 2, "enabled": False},
    }
    assert client.address == "h:1"


def test_generate_reads_stdin(client: type[FakeClient], run: Run) -> None:
    run("generate", "-", stdin="from a pipe\n")
    assert client.asked[0][0] == "from a pipe\n"


def test_generate_json_is_one_document(client: type[FakeClient], run: Run) -> None:
    code, out, err = run("generate", "hello", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["text"], answer["seed"], answer["token_ids"]) == ("one two", 7, [1, 2, 3])
    assert answer["speculation"]["num_accepted_tokens"] == 2


def test_statistics_go_to_stderr(client: type[FakeClient], run: Run) -> None:
    _, out, err = run("generate", "hello", "--stats")
    assert out == "one two\n"
    assert "2 of 3 draft tokens accepted" in err and "seed 7" in err


def test_failure_is_one_line_and_a_status(client: type[FakeClient], run: Run) -> None:
    client.failure = UnavailableError("no target\nis running")
    assert run("generate", "hello") == (1, "", "error: no target is running\n")


def test_failure_as_json(client: type[FakeClient], run: Run) -> None:
    client.failure = OverloadedError("queue is full")
    code, out, _ = run("generate", "hello", "--json")
    assert code == 1
    assert json.loads(out)["error"] == {
        "message": "queue is full",
        "type": "rate_limit_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("wrong", [["--max-tokens", "0"], ["--temperature", "3"], ["--nope"]])
def test_wrong_options_are_refused(client: type[FakeClient], run: Run, wrong: list[str]) -> None:
    code, _, err = run("generate", "hello", *wrong)
    assert code == 2 and "Error" in err and client.asked == []


def test_chat_keeps_the_conversation(client: type[FakeClient], run: Run) -> None:
    code, out, _ = run("chat", "--system", "be brief", stdin="first\n\nsecond\n/exit\nnever\n")
    assert (code, out) == (0, "one two\none two\n")
    roles = [[m["role"] for m in prompt] for prompt, _ in client.asked]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]
    assert client.asked[1][0][2]["content"] == "one two"


def test_chat_reset_forgets(client: type[FakeClient], run: Run) -> None:
    run("chat", stdin="first\n/reset\nsecond\n")
    assert client.asked[1][0] == [{"role": "user", "content": "second"}]


def test_chat_with_one_message(client: type[FakeClient], run: Run) -> None:
    code, out, _ = run("chat", "-m", "hello", "--json")
    assert code == 0 and json.loads(out)["text"] == "one two"


def test_chat_from_a_pipe_fails_when_a_turn_fails(client: type[FakeClient], run: Run) -> None:
    client.failure = UnavailableError("gone")
    assert run("chat", stdin="first\nsecond\n")[0] == 1
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["generate"],
        ["chat"],
        ["check"],
        ["distill"],
        ["eval-draft"],
        ["models", "pull"],
        ["models", "list"],
    ],
)
def test_every_command_has_help_with_an_example(run: Run, command: list[str]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert f"Example: specdist {' '.join(command)}" in out
    assert "--json" in out


def test_help_lists_exactly_the_commands_that_work(run: Run) -> None:
    _, out, _ = run("--help")
    listed = {line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()}
    assert listed == {"generate", "chat", "check", "distill", "eval-draft", "models"}
