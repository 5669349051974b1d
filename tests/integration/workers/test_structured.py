"""Structured output: always valid, the same with speculation on and off, and exact at the end."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest
import torch

from specdist.api.tokenizer import Tokenizer
from specdist.distill.offline_pair import Answer
from specdist.errors import InvalidRequestError
from specdist.grammar import Grammars
from specdist.grammar import grammars as room
from specdist.workers.target_worker import TargetWorker
from tests.integration.workers.structured_rig import (
    EOS,
    Rig,
    by_choice,
    by_regex,
    by_schema,
)
from tests.structured_cases import CHOICES, PATTERNS, SCHEMAS

FORMS = [by_schema(schema) for schema in SCHEMAS.values()]
OTHERS = [*map(by_regex, PATTERNS), *(by_choice(*choices) for choices in CHOICES)]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.5}
MODES: dict[str, dict[str, Any]] = {"greedy": {}, "seeded": SAMPLED}
DRAFTS = ("self", "wrong", "ngram")


@pytest.fixture(scope="module")
def rig(demo_target_folder: Path) -> Rig:
    torch.set_num_threads(1)
    return Rig(Tokenizer.load(demo_target_folder))


@pytest.fixture(scope="module")
def plain(rig: Rig) -> Any:
    """Answers of plain decoding to every form, made once for each way of sampling."""

    @cache
    def answers(mode: str) -> list[Answer]:
        return rig.answers("off", [*FORMS, *OTHERS], **MODES[mode])[0]

    return answers


@pytest.mark.parametrize("mode", MODES)
def test_answers_are_valid(rig: Rig, plain: Any, mode: str) -> None:
    answers = plain(mode)
    assert len(FORMS) >= 50
    for (name, schema), answer in zip(SCHEMAS.items(), answers, strict=False):
        text = rig.text(answer)
        assert answer.finish_reason == "stop" and answer.tokens[-1] == EOS, (name, text)
        jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).validate(json.loads(text))
    texts = [rig.text(answer) for answer in answers[len(FORMS) :]]
    for choices, text in zip(CHOICES, texts[len(PATTERNS) :], strict=True):
        assert text in choices
    for pattern, text in zip(PATTERNS, texts, strict=False):
        if r"\p" not in pattern:  # re does not know these
            assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("mode", MODES)
def test_speculation_on_is_speculation_off(rig: Rig, plain: Any, mode: str, draft: str) -> None:
    """B066, B067: every form, token by token; and no draft proposes what cannot follow."""
    answers, pair = rig.answers(draft, [*FORMS, *OTHERS], **MODES[mode])
    assert [a.tokens for a in answers] == [a.tokens for a in plain(mode)]
    assert sum(a.num_accepted for a in answers) > (300 if draft != "ngram" else 0)
    for tree in pair.trees:
        i = int(tree.session_id.removeprefix("s"))
        asked = rig.request(i, [*FORMS, *OTHERS][i], True)
        assert rig.candidates_are_allowed(tree, asked, answers[i])
    assert not pair.take_draft_trouble()


@pytest.mark.parametrize("rule", ["rejection", "traversal", "typical"])
def test_every_rule_keeps_to_the_grammar(rig: Rig, plain: Any, rule: str) -> None:
    """Greedy: plain decoding's answers. Sampled: valid ones, drawn children and all."""
    some = slice(0, len(FORMS), 5)
    answers, _ = rig.answers("wrong", FORMS[some], rule=rule)
    alone, _ = rig.answers("off", FORMS[some])
    assert [a.tokens for a in answers] == [a.tokens for a in alone]
    sampled, pair = rig.answers("wrong", FORMS[some], rule=rule, **SAMPLED)
    for schema, answer in zip([*SCHEMAS.values()][some], sampled, strict=True):
        jsonschema.validate(json.loads(rig.text(answer)), schema)
    assert sum(a.num_draft_tokens for a in sampled) > 100
    assert not pair.take_draft_trouble()


@pytest.mark.parametrize("draft", ["off", "wrong"])
def test_a_session_taken_up_elsewhere_goes_on_in_its_grammar(
    rig: Rig, plain: Any, draft: str
) -> None:
    index = list(SCHEMAS).index("steps")
    whole = plain("seeded")[index].tokens
    assert len(whole) > 8
    for committed in (1, len(whole) // 2, len(whole) - 1):
        asked = rig.request(index, FORMS[index], draft != "off", **SAMPLED)
        again = rig.taken_up(asked, whole[:committed])
        (answer,) = rig.pair(draft).answer_all([again], 1)
        assert answer.tokens == whole[committed:]


@pytest.mark.parametrize("draft", ["off", "self", "ngram"])
def test_an_answer_cut_by_max_tokens_is_the_beginning_of_a_valid_one(rig: Rig, draft: str) -> None:
    schema = SCHEMAS["records"]
    open_ended = {"logit_bias": (), "max_tokens": 11, "temperature": 0.7}
    (cut,), _ = rig.answers(draft, [by_schema(schema)], **open_ended)
    assert (cut.finish_reason, len(cut.tokens)) == ("length", 11)
    asked = rig.taken_up(rig.request(0, by_schema(schema), False), cut.tokens)
    (rest,) = rig.pair("off").answer_all([asked], 1)
    assert rest.finish_reason == "stop"
    jsonschema.validate(json.loads(rig.tokenizer.decode([*cut.tokens, *rest.tokens])), schema)


@pytest.mark.parametrize("draft", ["off", "self"])
def test_the_end_comes_where_the_grammar_allows_it(rig: Rig, draft: str) -> None:
    forms = [by_choice("yes"), by_regex("[ab]*"), by_regex("a{3}"), by_regex("[ab]*")]
    answers, _ = rig.answers(draft, forms, logit_bias=((EOS, -100.0),), max_tokens=12)
    texts = [rig.text(answer) for answer in answers]
    assert texts[0] == "yes" and texts[2] == "aaa"  # nothing else may follow: the end is forced
    assert [a.finish_reason for a in answers] == ["stop", "length", "stop", "length"]
    eager, _ = rig.answers(draft, forms, logit_bias=((EOS, 100.0),), max_tokens=12)
    assert [rig.text(a) for a in eager] == ["yes", "", "aaa", ""]


@pytest.mark.parametrize("draft", ["off", "self"])
def test_min_tokens_holds_back_the_end_but_not_for_ever(rig: Rig, draft: str) -> None:
    forms = [by_choice("yes"), by_regex("[ab]*")]
    answers, _ = rig.answers(draft, forms, min_tokens=6, logit_bias=((EOS, 100.0),))
    assert rig.text(answers[0]) == "yes" and answers[0].finish_reason == "stop"
    assert len(answers[1].tokens) == 7 and answers[1].tokens[-1] == EOS


@pytest.mark.parametrize("draft", ["off", "self"])
def test_a_stop_token_ends_only_where_the_grammar_admits_it(rig: Rig, draft: str) -> None:
    (b,) = rig.tokenizer.encode("b")
    forms = [by_regex("a{2}b{9}"), by_regex("a{4}")]
    answers, _ = rig.answers(draft, forms, stop_token_ids=(b,), logit_bias=((b, 50.0),))
    assert answers[0].tokens[-1] == b and rig.text(answers[0]) == "aab"
    assert rig.text(answers[1]) == "aaaa"


def test_a_draft_that_cannot_say_much_proposes_what_is_certain(rig: Rig, plain: Any) -> None:
    """Quotes, braces and digits are missing from its output vocabulary."""
    poor = [
        i for i in range(rig.tokenizer.vocab_size) if rig.tokenizer.token_bytes(i)[:1] in _ASCII
    ]
    answers, pair = rig.answers("self", FORMS, masked_ids=poor)
    assert [a.tokens for a in answers] == [a.tokens for a in plain("greedy")[: len(FORMS)]]
    assert not pair.take_draft_trouble()
    assert sum(a.num_accepted for a in answers) > 50


_ASCII = {bytes([i]) for i in b'"{}[]:, 0123456789'}


def test_reported_logprobs_are_over_the_allowed_tokens(rig: Rig) -> None:
    """As vLLM reports them: the grammar's mask first, nothing else of the processors."""
    options = {"num_logprobs": 5, "temperature": 0.5, "logit_bias": (), "max_tokens": 40}
    form = by_choice("positive", "negative", "neutral")
    (off,), _ = rig.answers("off", [form], **options)
    (on,), _ = rig.answers("self", [form], **options)
    entries = [e for v in off.verdicts for e in v.logprobs]
    spec = [e for v in on.verdicts for e in v.logprobs]
    assert [e.token_id for e in entries] == off.tokens == on.tokens
    constraint = rig.grammars.constraint(form)
    for i, (entry, other) in enumerate(zip(entries, spec, strict=True)):
        allowed = constraint.allowed(off.tokens[:i])
        assert allowed is not None and all(allowed[token] for token, _ in entry.top)
        mass = sum(torch.tensor([p for _, p in entry.top]).exp().tolist())
        if allowed.sum() <= 5:  # fewer than were asked for, and they are everything
            assert len(entry.top) == allowed.sum() and mass == pytest.approx(1.0, abs=1e-5)
        assert other.logprob == pytest.approx(entry.logprob, abs=1e-4)
    assert entries[-1].logprob == 0.0 and entries[-1].token_id == EOS


def test_a_grammar_that_becomes_too_complex_ends_its_own_request_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = llguidance.LLParserLimits(max_items_in_row=60, verbose_errors=False)
    monkeypatch.setattr(room, "LIMITS", tight)
    pair = rig.pair("self", grammars=Grammars(rig.tokenizer.to_json, [EOS]))
    wide = by_schema({"properties": {f"p{i}": {"type": "null"} for i in range(40)}})
    open_object = ((rig.tokenizer.encode("{")[0], 50.0),)
    broken = pair.open(rig.request(0, wide, True, logit_bias=open_object))
    sound = pair.open(rig.request(1, by_choice("yes"), True))
    for _ in range(20):
        pair.step()
    assert broken.finish_reason == "error"
    verdict = broken.verdicts[-1]
    assert verdict.is_refusal and "too complex" in (verdict.error or "")
    assert rig.text(sound) == "yes" and sound.finish_reason == "stop"
    assert not pair.target._sessions and not pair.draft._sessions


def test_replicas_refuse_at_once_what_they_cannot_compile(rig: Rig) -> None:
    pair = rig.pair("self")
    for worker in (pair.target, pair.draft):
        for open_it in (worker.prepare, lambda r, w=worker: w.open(r, "r0")):
            with pytest.raises(InvalidRequestError, match="structured_outputs cannot be used"):
                open_it(rig.request(0, by_regex("["), True))
    without = TargetWorker(
        pair.config, "t1", lambda *_: None, pair._draft_recorder, pair.target_engine,
        pair.target._choice.cost,
    )  # fmt: skip
    with pytest.raises(InvalidRequestError, match="without a vocabulary"):
        without.open(rig.request(0, by_regex("a"), True), "r0")


def test_requests_without_a_form_never_touch_a_grammar(rig: Rig) -> None:
    untouched = Grammars(lambda: pytest.fail("the vocabulary was read"), [EOS])
    pair = rig.pair("self", grammars=untouched)
    asked = rig.request(0, by_regex("a"), True)
    free = dataclasses.replace(asked.sampling, structured_output=None, max_tokens=5)
    (answer,) = pair.answer_all([dataclasses.replace(asked, sampling=free)], 1)
    assert len(answer.tokens) <= 5
