"""First turns: drawn from the pool, from built-in templates, or left for the target to write.

What a shard asks is a function of (settings, pool, seed, shard number) alone, so that a run
goes on exactly where it was stopped. A source is walked through in a shuffled order before
any of its prompts comes again. Knows no model; called by ``answers``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from specdist.distill import templates
from specdist.distill.pool import Pool
from specdist.distill.prompt_types import Document, Prompt, user
from specdist.distill.settings import DistillSettings

T = TypeVar("T")
SELF, FOLLOW_UP, TEMPLATES = "self", "follow_up", "templates"
SHORTEST_DOCUMENT = 200  # characters
_NAME = re.compile(r"\b[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_SENTENCE_END = re.compile(r"(?<=[.?!。?!])\s*")


class Slot(NamedTuple):
    """One place of a shard: which source fills it, and its turn within the source."""

    source: str | int  # SELF, FOLLOW_UP, TEMPLATES, or the number of a pool's source
    turn: int  # how often the source was used before, in this shard and in all before it


def shard_slots(settings: DistillSettings, pool: Pool, shard: int) -> list[Slot]:
    """Which sources fill a shard, shuffled; the shares are met exactly over many shards."""
    slots: list[Slot] = []
    for source, share in _shares(settings, pool).items():
        before, after = (
            int(share * num + 1e-9)
            for num in (shard * settings.shard_answers, (shard + 1) * settings.shard_answers)
        )
        slots += [Slot(source, turn) for turn in range(before, after)]
    random.Random(f"{settings.seed} slots {shard}").shuffle(slots)
    return slots


def _shares(settings: DistillSettings, pool: Pool) -> dict[str | int, float]:
    weights: dict[str | int, float] = {n: s.weight for n, s in enumerate(pool.sources)}
    weights[TEMPLATES] = settings.templates
    total = sum(weights.values())
    first_turns = 1 - settings.follow_up_share
    given = first_turns * (1 - settings.self_share) if total else 0.0
    shares = {source: given * w / total for source, w in weights.items() if w > 0}
    rest = {SELF: first_turns - given, FOLLOW_UP: settings.follow_up_share}
    return {**shares, **{k: v for k, v in rest.items() if v > 0}}


def draw_prompt(settings: DistillSettings, pool: Pool, slot: Slot, rng: random.Random) -> Prompt:
    """The prompt of a slot that takes one from the pool or the templates."""
    if slot.source == TEMPLATES:
        return _draw_template(rng)
    assert isinstance(slot.source, int)
    source = pool.sources[slot.source]
    if source.prompts:
        return _walk(source.prompts, settings.seed, slot)
    return draw_task(_walk(source.documents, settings.seed, slot), rng)


def _walk(items: Sequence[T], seed: int, slot: Slot) -> T:
    """The next item of the source; each round through it has another order."""
    round_number, place = divmod(slot.turn, len(items))
    return items[_order(f"{seed} source {slot.source} {round_number}", len(items))[place]]


@lru_cache(maxsize=64)
def _order(name: str, size: int) -> list[int]:
    order = list(range(size))
    random.Random(name).shuffle(order)
    return order


# -- templates ------------------------------------------------------------------------------


def _draw_template(rng: random.Random) -> Prompt:
    kinds = list(_FORMS)
    kind = rng.choices(kinds, [_FORMS[k][0] for k in kinds])[0]
    first, second = rng.sample(templates.TOPICS, 2)
    numbers = {"n": rng.randint(12, 250), "m": rng.randint(2, 12)}
    form = rng.choice(_FORMS[kind][1])
    text = form.format(t=first, u=second, c=rng.choice(templates.CODE_TASKS), **numbers)
    return Prompt(kind, user(text), text)


_FORMS: Mapping[str, tuple[float, Sequence[str]]] = {
    "question": (0.35, templates.QUESTIONS),
    "writing": (0.25, templates.WRITING),
    "roleplay": (0.1, templates.ROLEPLAY),
    "reasoning": (0.1, templates.REASONING),
    "code": (0.2, templates.CODE),
}


# -- tasks on documents ---------------------------------------------------------------------


def draw_task(document: Document, rng: random.Random) -> Prompt:
    """A task on a part of a document."""
    kinds = list(_TASKS)
    kind = rng.choices(kinds, [_TASKS[k][0] for k in kinds])[0]
    prompt = _TASKS[kind][1](document, rng)
    return prompt._replace(kind=kind, group=document.text)


def _task(forms: Sequence[str]) -> Callable[[Document, random.Random], Prompt]:
    def draw(document: Document, rng: random.Random) -> Prompt:
        text = rng.choice(forms).format(d=cut_document(document.text, rng))
        return Prompt("", user(text), "")

    return draw


def _passage_question(document: Document, rng: random.Random) -> Prompt:
    passage = cut_document(document.text, rng)
    names = _NAME.findall(passage)
    about = rng.choice(names) if names else "it"
    question = rng.choice(templates.PASSAGE_QUESTIONS).format(x=about)
    return Prompt("", user(passage_task([passage], question, rng)), "")


def passage_task(passages: Sequence[str], question: str, rng: random.Random) -> str:
    """A question with the passages that may answer it."""
    numbered = [f"Passage {i}: {p}" for i, p in enumerate(passages, 1)]
    text = "\n\n".join(numbered if len(passages) > 1 else passages)
    return rng.choice(templates.PASSAGE_TASKS).format(d=text, q=question)


def _translation(document: Document, rng: random.Random) -> Prompt:
    into = "English"
    if document.language == "English":
        into = rng.choice(templates.TRANSLATE_TO)
    sentences = cut_sentences(document.text, rng)
    return translate(sentences, document.language, into, rng)


def translate(text: str, source: str, into: str, rng: random.Random) -> Prompt:
    """The task to translate a text."""
    task = rng.choice(templates.TRANSLATION_TASKS).format(a=source, b=into, s=text)
    return Prompt("translation", user(task), text, language=into)


_TASKS: Mapping[str, tuple[float, Callable[[Document, random.Random], Prompt]]] = {
    "summary": (0.3, _task(templates.SUMMARY_TASKS)),
    "passage": (0.25, _passage_question),
    "translation": (0.2, _translation),
    "document": (0.15, _task(templates.DOCUMENT_TASKS)),
    "extraction": (0.1, _task(templates.EXTRACTION)),
}


def cut_document(text: str, rng: random.Random) -> str:
    """A part of a document, from a paragraph on, more often short than long."""
    paragraphs = text.split("\n\n")
    first = rng.randrange(len(paragraphs)) if len(text) > SHORTEST_DOCUMENT else 0
    rest = "\n\n".join(paragraphs[first:])
    if len(rest) < SHORTEST_DOCUMENT:
        rest = text
    size = int(SHORTEST_DOCUMENT * (max(len(rest), 1) / SHORTEST_DOCUMENT) ** rng.random())
    return rest[:size].rsplit(" ", 1)[0] if size < len(rest) else rest


def cut_sentences(text: str, rng: random.Random) -> str:
    """One or two sentences of a text."""
    sentences = [s for s in _SENTENCE_END.split(" ".join(text.split())) if len(s) > 8]
    if not sentences:
        return text[:300]
    first = rng.randrange(len(sentences))
    return " ".join(sentences[first : first + rng.randint(1, 2)])[:400]
