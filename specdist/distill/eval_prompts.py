"""Prompts of an evaluation: a JSONL file in, token ids with a category out.

A line is a chat by its user turns (``{"turns": [...]}``), a chat by its messages
(``{"messages": [...]}``) or a plain text (``{"prompt": "..."}``); its category is the field
``category``, else ``kind``, else "all". Knows no model: later turns of a chat need the
target's answers, which are asked of a function. Called by ``eval_draft``, ``eval_runs``, the
command line and ``benchmarks/offline_vs_served.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specdist.api.chat_messages import read_messages
from specdist.api.tokenizer import Tokenizer
from specdist.errors import ConfigError, InvalidRequestError

FORMS = ("turns", "messages", "prompt")
TURN_SLACK = 64  # tokens of an answer that its decoded text may need beyond what was generated
Reply = Callable[[list["EvalPrompt"]], list[list[int]]]


@dataclass(frozen=True)
class Conversation:
    """One line of the file."""

    name: str
    category: str
    user_turns: tuple[str, ...] = ()
    messages: tuple[dict[str, str], ...] = ()  # where the line had these instead
    text: str | None = None  # where it had this instead

    def encode(self, tokenizer: Tokenizer, answers: Sequence[str] = ()) -> list[int]:
        """Token ids up to where the target answers turn number ``len(answers)`` (from 0)."""
        if self.text is not None:
            return tokenizer.encode(self.text)
        if self.messages:
            return tokenizer.encode_chat(self.messages)
        chat = [{"role": "user", "content": self.user_turns[0]}]
        for answer, turn in zip(answers, self.user_turns[1:], strict=False):
            chat.append({"role": "assistant", "content": answer})
            chat.append({"role": "user", "content": turn})
        return tokenizer.encode_chat(chat)


@dataclass(frozen=True)
class EvalPrompt:
    """One prompt as both models see it."""

    name: str
    category: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class PromptFile:
    """The conversations that are used, and what they were taken from."""

    path: Path
    sha256: str
    num_lines: int
    conversations: tuple[Conversation, ...]


def read_prompt_file(path: Path, num_prompts: int | None = None) -> PromptFile:
    """Read and check every line; ``num_prompts`` of them are used, spread evenly over the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the prompts {path}: {error.strerror}") from error
    conversations = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                conversations.append(_read_line(line, number))
            except (ValueError, InvalidRequestError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
    if not conversations:
        raise ConfigError(f"{path} holds no prompts")
    chosen = spread(conversations, num_prompts)
    digest = hashlib.sha256(content).hexdigest()
    return PromptFile(path, digest, len(conversations), tuple(chosen))


def spread(items: Sequence[Conversation], count: int | None) -> list[Conversation]:
    """``count`` items at even distances; all of them when there are no more than that."""
    if count is not None and count < 1:
        raise ConfigError(f"num_prompts must be at least 1, got {count}")
    if count is None or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def _read_line(line: bytes, number: int) -> Conversation:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {type(record).__name__}")
    forms = [form for form in FORMS if form in record]
    if len(forms) != 1:
        raise ValueError(f"needs one of {', '.join(FORMS)}, has {forms or sorted(record)}")
    category = record.get("category", record.get("kind", "all"))
    if not isinstance(category, str) or not category:
        raise ValueError(f"category must be a text, got {category!r}")
    return Conversation(f"line {number}", category, **_CHECKS[forms[0]](record[forms[0]]))


def _turns(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not value or not all(isinstance(t, str) for t in value):
        raise ValueError(f"turns must be a list of texts, at least one, got {value!r}")
    return {"user_turns": tuple(value)}


def _messages(value: Any) -> dict[str, Any]:
    messages = read_messages(value)
    if messages[-1]["role"] == "assistant":
        raise ValueError("messages must end where the assistant is to answer, not with its answer")
    return {"messages": tuple(messages)}


def _prompt(value: Any) -> dict[str, Any]:
    if not isinstance(value, str) or not value:
        raise ValueError(f"prompt must be a text, got {value!r}")
    return {"text": value}


_CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "turns": _turns,
    "messages": _messages,
    "prompt": _prompt,
}


class Fitted(NamedTuple):
    """The conversations that the context holds with their answers."""

    conversations: tuple[Conversation, ...]
    skipped: tuple[str, ...]  # names of those that it does not hold
    num_tokens: int  # the longest needs at most so many, its last answer included


def fit(
    conversations: Sequence[Conversation],
    tokenizer: Tokenizer,
    all_turns: bool,
    max_tokens: int,
    context: int,
) -> Fitted:
    """Leave out what is too long for the target; ConfigError when nothing is left."""
    kept, skipped, longest = [], [], 0
    for conversation in conversations:
        num_before = max(len(conversation.user_turns) - 1, 0) if all_turns else 0
        num_tokens = len(_encode(conversation, tokenizer, [""] * num_before))
        num_tokens += num_before * (max_tokens + TURN_SLACK) + max_tokens
        if num_tokens > context:
            skipped.append(conversation.name)
            continue
        kept.append(conversation)
        longest = max(longest, num_tokens)
    if not kept:
        raise ConfigError(
            f"none of the {len(skipped)} prompts fits the target's context of {context} tokens "
            f"with an answer of {max_tokens}"
        )
    return Fitted(tuple(kept), tuple(skipped), longest)


def first_prompts(conversations: Sequence[Conversation], tokenizer: Tokenizer) -> list[EvalPrompt]:
    """The first turn of every conversation."""
    return [_ask(c, tokenizer, ()) for c in conversations]


def later_prompts(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, reply: Reply
) -> list[EvalPrompt]:
    """Every further turn, behind the answers that ``reply`` gives to the turns before it."""
    found: list[EvalPrompt] = []
    talks = [c for c in conversations if len(c.user_turns) > 1]
    answers: dict[str, list[str]] = {c.name: [] for c in talks}
    asked = first_prompts(talks, tokenizer)
    while talks:
        for conversation, ids in zip(talks, reply(asked), strict=True):
            answers[conversation.name].append(tokenizer.decode(ids))
        asked = [_ask(c, tokenizer, answers[c.name]) for c in talks]
        found += asked
        goes_on = [len(c.user_turns) > len(answers[c.name]) + 1 for c in talks]
        asked = [p for p, more in zip(asked, goes_on, strict=True) if more]
        talks = [c for c, more in zip(talks, goes_on, strict=True) if more]
    return found


def _ask(conversation: Conversation, tokenizer: Tokenizer, answers: Sequence[str]) -> EvalPrompt:
    turn = f", turn {len(answers) + 1}" if answers else ""
    ids = _encode(conversation, tokenizer, answers)
    return EvalPrompt(conversation.name + turn, conversation.category, tuple(ids))


def _encode(conversation: Conversation, tokenizer: Tokenizer, answers: Sequence[str]) -> list[int]:
    try:
        ids = conversation.encode(tokenizer, answers)
    except InvalidRequestError as error:
        raise ConfigError(f"prompts, {conversation.name}: {error.message}") from None
    if not ids:
        raise ConfigError(f"prompts, {conversation.name}: must have at least 1 token, got 0")
    return ids
