"""What a prompt is before it is tokens: messages, where it came from, what may follow.

Plain records, no logic beyond their JSON form. Used by all modules that read, draw or
answer prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


class Prompt(NamedTuple):
    """A conversation that ends with a user turn.

    ``group`` is the text that decides on which side of the held-out split the prompt falls:
    prompts made from one another share it.
    """

    kind: str
    messages: tuple[Message, ...]
    group: str
    next_turns: tuple[str, ...] = ()  # what the user will say after the answers to come
    language: str | None = None  # of the answer, where the prompt asks for another than English


class Document(NamedTuple):
    """A text that tasks are put around."""

    text: str
    language: str = "English"


def user(text: str) -> tuple[Message, ...]:
    """A conversation of one user turn."""
    return (Message("user", text),)


def to_plain(prompt: Prompt) -> dict[str, Any]:
    """As JSON keeps it."""
    return {**prompt._asdict(), "messages": [list(m) for m in prompt.messages]}


def from_plain(values: Mapping[str, Any]) -> Prompt:
    """Back from JSON."""
    messages = tuple(Message(*m) for m in values["messages"])
    turns: Sequence[str] = values.get("next_turns") or ()
    return Prompt(values["kind"], messages, values["group"], tuple(turns), values.get("language"))
