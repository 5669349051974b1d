"""What a shard asks: shares, order, templates and follow-ups, all from the seed alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from specdist.distill.follow_ups import MOST_TURNS, Answered, follow_up
from specdist.distill.pool import Pool, Source
from specdist.distill.prompt_filters import Exclusion
from specdist.distill.prompt_types import Document, Message, Prompt, from_plain, to_plain, user
from specdist.distill.prompts import cut_document, draw_prompt, shard_slots
from specdist.distill.settings import DistillSettings

TEXT = "\n\n".join(
    f"Paragraph {i} tells of Ann Lee and the town of Dunmore. It ends." for i in range(30)
)


def pool_of(num_prompts: int = 7) -> Pool:
    prompts = [Prompt("file", user(f"prompt {i}"), f"prompt {i}") for i in range(num_prompts)]
    sources = (Source("p", 2.0, prompts=prompts), Source("d", 1.0, documents=[Document(TEXT)]))
    return Pool(sources, Exclusion(), "digest")


def settings_of(**more: object) -> DistillSettings:
    return DistillSettings(target="t", out="o", shard_answers=50, **more)  # type: ignore[arg-type]


def test_shares_are_met_over_many_shards() -> None:
    settings = settings_of(self_share=0.2, follow_up_share=0.25, templates=1.0)
    slots = [s for n in range(40) for s in shard_slots(settings, pool_of(), n)]
    counts = Counter(s.source for s in slots)
    wanted = {0: 0.3, 1: 0.15, "templates": 0.15, "self": 0.15, "follow_up": 0.25}
    for source, share in wanted.items():
        assert counts[source] / len(slots) == pytest.approx(share, abs=0.002), source


def test_a_shard_depends_on_the_seed_and_its_number_only() -> None:
    pool = pool_of()
    first = shard_slots(settings_of(seed=1), pool, 5)
    assert first == shard_slots(settings_of(seed=1), pool, 5)
    assert first != shard_slots(settings_of(seed=2), pool, 5)
    prompts = [
        [draw_prompt(settings_of(), pool, s, random.Random(3)) for s in first if s.source in (0, 1)]
        for _ in range(2)
    ]
    assert prompts[0] == prompts[1]


def test_a_source_is_used_up_before_it_repeats() -> None:
    settings = settings_of(self_share=0, follow_up_share=0, templates=0, prompts=("p",))
    pool = pool_of(7)
    slots = [s for n in range(3) for s in shard_slots(settings, pool, n) if s.source == 0]
    slots.sort(key=lambda slot: slot.turn)
    asked = [draw_prompt(settings, pool, s, random.Random(0)).group for s in slots]
    for begin in range(0, len(asked) - 7, 7):
        assert len(set(asked[begin : begin + 7])) == 7
    assert asked[:7] != asked[7:14], "each round has an order of its own"


def test_tasks_are_put_around_documents() -> None:
    settings, pool = settings_of(), pool_of()
    slots = [s for n in range(20) for s in shard_slots(settings, pool, n) if s.source == 1]
    drawn = [draw_prompt(settings, pool, s, random.Random(i)) for i, s in enumerate(slots)]
    assert {p.kind for p in drawn} == {
        "summary",
        "passage",
        "translation",
        "document",
        "extraction",
    }
    assert all("{" not in p.messages[0].content for p in drawn), "a form was not filled in"
    assert {p.group for p in drawn} == {TEXT}
    assert any("Ann Lee" in p.messages[0].content.split("\n")[-1] for p in drawn), "questions"


def test_templates_are_filled_in() -> None:
    settings, pool = settings_of(), Pool((), Exclusion(), "")
    slots = [
        s for n in range(30) for s in shard_slots(settings, pool, n) if s.source == "templates"
    ]
    drawn = [draw_prompt(settings, pool, s, random.Random(i)) for i, s in enumerate(slots)]
    assert {p.kind for p in drawn} == {"question", "writing", "roleplay", "reasoning", "code"}
    assert len({p.group for p in drawn}) > 0.9 * len(drawn)
    assert all("{" not in p.group for p in drawn)


def test_parts_of_documents_are_of_many_lengths() -> None:
    sizes = [len(cut_document(TEXT, random.Random(i))) for i in range(200)]
    assert min(sizes) < 250 < 1000 < max(sizes) <= len(TEXT)
    assert cut_document("short text", random.Random(0)) == "short text"


def test_follow_ups_belong_to_the_group_of_their_origin() -> None:
    first = Prompt("question", user("What is tea?"), "origin")
    item = Answered(first, "Tea is a drink. It comes from Asia.")
    others = [Answered(Prompt("x", user("other"), "o"), "Another text. It is here.")]
    made = [follow_up(item, others, random.Random(i)) for i in range(200)]
    assert {p.group for p in made} == {"origin"}
    kinds = {p.kind for p in made}
    assert {"turn", "passage", "translation", "summary"} <= kinds
    turn = next(p for p in made if p.kind == "turn")
    assert turn.messages[:2] == (Message("user", "What is tea?"), Message("assistant", item.answer))
    asked = [p.messages[0].content for p in made if p.kind == "passage"]
    assert any("What is tea?" in a and "Tea is" in a and "Another" in a for a in asked)


def test_recorded_turns_are_asked_next_and_conversations_end() -> None:
    first = Prompt("chat", user("one"), "g", next_turns=("two", "three"))
    second = follow_up(Answered(first, "a"), [], random.Random(0))
    assert [m.content for m in second.messages] == ["one", "a", "two"]
    assert second.next_turns == ("three",)
    long = Prompt("chat", user("x") * MOST_TURNS, "g")
    made = [follow_up(Answered(long, "An answer. More."), [], random.Random(i)) for i in range(50)]
    assert "turn" not in {p.kind for p in made}


def test_translations_go_back_into_english() -> None:
    asked = Prompt("translation", user("Translate ..."), "g", language="German")
    made = [
        follow_up(Answered(asked, "Das ist ein Satz."), [], random.Random(i)) for i in range(99)
    ]
    tasks = [p for p in made if p.kind == "translation"]
    assert tasks and all(p.language == "English" for p in tasks)


def test_prompts_survive_json() -> None:
    prompt = Prompt("k", (Message("system", "s"), Message("user", "u")), "g", ("n",), "German")
    assert from_plain(to_plain(prompt)) == prompt
