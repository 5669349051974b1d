"""``specdist chat``: a conversation with the served model, turn by turn.

At a terminal it asks for each turn; from a pipe, every line of stdin is one turn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdist.cli import options as opts
from specdist.cli.answers import print_answer_json, print_statistics, stream_answer
from specdist.cli.output import print_error
from specdist.errors import SpecdistError

if TYPE_CHECKING:
    from specdist.client import Client

EXAMPLE = 'Example: specdist chat --system "Answer in one sentence." --temperature 0.7'
END = "/exit"
FORGET = "/reset"


def chat(
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Ask this one thing and end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    address: opts.Address = opts.DEFAULT_ADDRESS,
    max_tokens: opts.MaxTokens = 512,
    temperature: opts.Temperature = None,
    top_p: opts.TopP = None,
    seed: opts.Seed = None,
    speculate: opts.Speculate = True,
    timeout: opts.Timeout = None,
    stats: opts.Stats = False,
    as_json: opts.AsJson = False,
) -> None:
    """Talk with the served model (/reset forgets, /exit ends)."""
    from specdist.client import Client

    sampling = opts.Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        speculate=speculate,
        timeout_s=timeout,
    )
    with Client(address) as client:
        talk = Conversation(client, system, sampling.to_options(), stats, as_json)
        for turn in [message] if message is not None else turns():
            talk.say(turn)


def turns() -> Iterator[str]:
    """What the user says, until the end of input or /exit."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except EOFError:
            return
        if line == END:
            return
        if line:
            yield line


class Conversation:
    """The messages so far; a turn that fails leaves them as they were."""

    def __init__(
        self,
        client: Client,
        system: str | None,
        options: dict[str, Any],
        stats: bool,
        as_json: bool,
    ) -> None:
        self._client = client
        self._options = options
        self._stats = stats
        self._as_json = as_json
        self._beginning = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._beginning)

    def say(self, turn: str) -> None:
        """Take one turn of the user and print the answer."""
        if turn == FORGET:
            self._messages = list(self._beginning)
            return
        asked = [*self._messages, {"role": "user", "content": turn}]
        try:
            text = self._answer(asked)
        except SpecdistError as error:
            if not sys.stdin.isatty():
                raise
            print_error(error)  # a person may try again
            return
        self._messages = [*asked, {"role": "assistant", "content": text}]

    def _answer(self, asked: list[dict[str, str]]) -> str:
        if self._as_json:
            return print_answer_json(self._client, asked, self._options)
        text, last = stream_answer(self._client, asked, self._options)
        if self._stats:
            print_statistics(last)
        return text
