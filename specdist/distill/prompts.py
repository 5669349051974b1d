"""Prompts for distillation: public texts and templates, drawn by kind.

Knows where each kind of prompt comes from and how often it is drawn. Does not
know any model or tokenizer, and never reads a benchmark file. Called by
``specdist.distill.short``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specdist.distill import templates

LANGUAGES = {
    "bn": "Bengali",
    "de": "German",
    "es": "Spanish",
    "ja": "Japanese",
    "th": "Thai",
    "zh": "Chinese",
}
# MGSM translates the first 250 problems of GSM8K's test split. These rows (counted from 0) are
# translations of problems that Spec-Bench also asks, so they are left out.
MGSM_EXCLUDED = frozenset({73, 82, 161, 194, 229, 231})

# Shares of the kinds of prompt. "self" has only the opening of a user turn: the target writes it.
KIND_WEIGHTS: Mapping[str, float] = {
    "self": 0.22,
    "question": 0.16,
    "translation": 0.13,
    "document": 0.13,
    "gsm8k": 0.11,
    "writing": 0.11,
    "mbpp": 0.05,
    "mgsm": 0.03,
    "code": 0.03,
    "chat": 0.03,
}


class Message(NamedTuple):
    role: str
    content: str


class Prompt(NamedTuple):
    kind: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Corpora:
    """The texts that prompts are made of, as read from the data folder."""

    problems: tuple[str, ...]  # GSM8K, train split
    programs: tuple[str, ...]  # MBPP task descriptions
    translated: Mapping[str, tuple[str, ...]]  # MGSM questions by language code
    chats: tuple[tuple[Message, ...], ...]
    verses: tuple[str, ...]  # lines of plays and sonnets, paragraph by paragraph


def load_corpora(folder: Path) -> Corpora:
    """Read every source file; a missing one is an error, so that no mix is silently thinner."""
    with (folder / "gsm8k_train.jsonl").open(encoding="utf-8") as lines:
        problems = tuple(json.loads(line)["question"] for line in lines)
    programs = json.loads((folder / "mbpp_sanitized.json").read_text(encoding="utf-8"))
    chats = json.loads((folder / "dummy_conversation.json").read_text(encoding="utf-8"))
    plays = (folder / "tinyshakespeare.txt").read_text(encoding="utf-8").split("\n\n")
    sonnets = (folder / "sonnet.txt").read_text(encoding="utf-8").splitlines()
    stanzas = ["\n".join(sonnets[i : i + 7]) for i in range(0, len(sonnets), 7)]
    return Corpora(
        problems=problems,
        programs=tuple(p["prompt"] for p in programs),
        translated={code: _read_mgsm(folder, code) for code in LANGUAGES},
        chats=tuple(_read_chat(chat["conversations"]) for chat in chats),
        verses=tuple(plays + stanzas),
    )


def _read_mgsm(folder: Path, code: str) -> tuple[str, ...]:
    rows = (folder / f"mgsm_{code}.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(r.split("\t")[0] for i, r in enumerate(rows) if i not in MGSM_EXCLUDED)


def _read_chat(turns: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    roles = {"human": "user", "gpt": "assistant"}
    return tuple(Message(roles[turn["from"]], turn["value"]) for turn in turns)


def draw_prompts(corpora: Corpora, rng: random.Random, num_prompts: int) -> list[Prompt]:
    """Draw prompts with the shares of ``KIND_WEIGHTS``."""
    kinds = rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()), k=num_prompts)
    return [Prompt(kind, _DRAWERS[kind](corpora, rng)) for kind in kinds]


def follow_up(prompt: Prompt, answer: str, rng: random.Random) -> Prompt:
    """A next prompt made from an answered one: a second turn, or the answer as a document."""
    if rng.random() < 0.6:
        turns = (Message("assistant", answer), Message("user", rng.choice(templates.FOLLOW_UPS)))
        return Prompt("follow_up", prompt.messages + turns)
    task = rng.choice(templates.DOCUMENT_TASKS).format(d=answer)
    return Prompt("own_document", (Message("user", task),))


def _user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def _draw_self(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _user(rng.choice(templates.OPENINGS))


def _fill_topics(forms: Sequence[str], rng: random.Random) -> tuple[Message, ...]:
    first, second = rng.sample(templates.TOPICS, 2)
    return _user(rng.choice(forms).format(t=first, u=second))


def _draw_question(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _fill_topics(templates.QUESTIONS, rng)


def _draw_writing(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _fill_topics(templates.WRITING, rng)


def _draw_code(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _user(rng.choice(templates.CODE).format(c=rng.choice(templates.CODE_TASKS)))


def _draw_gsm8k(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    problem = rng.choice(corpora.problems)
    return _user(problem if rng.random() < 0.7 else f"{problem} Think step by step.")


def _draw_mbpp(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _user(rng.choice(corpora.programs))


def _draw_mgsm(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    return _user(rng.choice(corpora.translated[rng.choice(sorted(LANGUAGES))]))


def _draw_chat(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    """A conversation cut after one of its user turns."""
    chat = rng.choice(corpora.chats)
    ends = [i + 1 for i, message in enumerate(chat) if message.role == "user"]
    return chat[: rng.choice(ends)]


def _draw_document(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    """Neighbouring paragraphs, up to about 800 characters, with a task on them."""
    start = rng.randrange(len(corpora.verses) - 8)
    size = rng.randint(200, 800)
    document = "\n\n".join(corpora.verses[start : start + 8])[:size].rsplit(" ", 1)[0]
    return _user(rng.choice(templates.DOCUMENT_TASKS).format(d=document))


def _draw_translation(corpora: Corpora, rng: random.Random) -> tuple[Message, ...]:
    """Mostly from a foreign language into English, with one or two sentences."""
    if rng.random() < 0.75:
        code = rng.choices(list(LANGUAGES), [1, 8, 4, 2, 1, 3])[0]
        source, into, text = LANGUAGES[code], "English", rng.choice(corpora.translated[code])
    else:
        source, into = "English", rng.choice(["German", "Spanish", "French", "Italian", "Chinese"])
        text = rng.choice(corpora.problems)
    sentences = re.split(r"(?<=[.?!。?!])\s*", text)
    first = rng.randrange(max(1, len(sentences) - 1))
    sentence = " ".join(sentences[first : first + rng.randint(1, 2)])
    return _user(rng.choice(templates.TRANSLATION_TASKS).format(a=source, b=into, s=sentence))


_DRAWERS: Mapping[str, Callable[[Corpora, random.Random], tuple[Message, ...]]] = {
    "self": _draw_self,
    "question": _draw_question,
    "translation": _draw_translation,
    "document": _draw_document,
    "gsm8k": _draw_gsm8k,
    "writing": _draw_writing,
    "mbpp": _draw_mbpp,
    "mgsm": _draw_mgsm,
    "code": _draw_code,
    "chat": _draw_chat,
}
