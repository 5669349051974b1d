"""Next prompts out of earlier answers: another turn, or the answer as material of a new task.

So conversations, documents, passages with questions and translations exist without any
data set. Takes the texts of an earlier shard. Knows no model; called by ``answers``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from specdist.distill import templates
from specdist.distill.prompt_types import Document, Message, Prompt, user
from specdist.distill.prompts import (
    cut_document,
    cut_sentences,
    draw_task,
    passage_task,
    translate,
)

MOST_TURNS = 3  # user turns of one conversation
MOST_PASSAGES = 3


class Answered(NamedTuple):
    """A prompt with the text of the target's answer."""

    prompt: Prompt
    answer: str


def follow_up(item: Answered, others: Sequence[Answered], rng: random.Random) -> Prompt:
    """A prompt made from an answered one; it belongs to the same group."""
    kinds = list(_WAYS)
    way = rng.choices(kinds, [_WAYS[k][0] for k in kinds])[0]
    num_turns = sum(m.role == "user" for m in item.prompt.messages)
    if item.prompt.next_turns:
        way = "turn"
    elif way == "turn" and num_turns >= MOST_TURNS:
        way = "document"
    return _WAYS[way][1](item, others, rng)._replace(group=item.prompt.group)


def _next_turn(item: Answered, others: Sequence[Answered], rng: random.Random) -> Prompt:
    prompt = item.prompt
    said, *later = prompt.next_turns or (rng.choice(templates.FOLLOW_UPS),)
    turns = (Message("assistant", item.answer), Message("user", said))
    return Prompt("turn", prompt.messages + turns, prompt.group, tuple(later))


def _document(item: Answered, others: Sequence[Answered], rng: random.Random) -> Prompt:
    return draw_task(Document(item.answer, item.prompt.language or "English"), rng)


def _passages(item: Answered, others: Sequence[Answered], rng: random.Random) -> Prompt:
    """The question again, with its own answer among other texts."""
    number = rng.randint(1, MOST_PASSAGES)
    texts = [item.answer, *(o.answer for o in rng.sample(others, min(number - 1, len(others))))]
    passages = [cut_document(text, rng) for text in texts]
    rng.shuffle(passages)
    question = item.prompt.messages[-1].content[:300]
    return Prompt("passage", user(passage_task(passages, question, rng)), "")


def _translation(item: Answered, others: Sequence[Answered], rng: random.Random) -> Prompt:
    """Back into English what was translated, else a sentence into another language."""
    there = item.prompt.language or "English"
    into = "English" if there != "English" else rng.choice(templates.TRANSLATE_TO)
    return translate(cut_sentences(item.answer, rng), there, into, rng)


_Way = Callable[[Answered, Sequence[Answered], random.Random], Prompt]
_WAYS: Mapping[str, tuple[float, _Way]] = {
    "turn": (0.4, _next_turn),
    "document": (0.2, _document),
    "passages": (0.2, _passages),
    "translation": (0.2, _translation),
}
