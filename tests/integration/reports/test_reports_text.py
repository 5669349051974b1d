"""Groups B, C and E: real verdicts through the API's text side, runs of every length."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from specdist.api.openai_requests import read_chat
from specdist.engine.loader import LoadedModel
from specdist.errors import InvalidRequestError
from specdist.protocol.verdict import TokenLogprobs
from tests.integration.reports.real_target import RealTarget, pair_open, text_of
from tests.integration.reports.rigs import GOLD, check_accounts, drain, fixed, oracle, scripted
from tests.pair import Answer

STEPS = ["plain", "long runs", "mixed"]


@pytest.fixture(scope="module")
def answers(real: RealTarget) -> dict[str, dict[str, Answer]]:
    """All reference prompts, plain, with gamma 16 accepted, and with every 3rd guess wrong."""
    found = {"plain": real.plain}
    for steps, wrong_every in (("long runs", 0), ("mixed", 3)):
        texts = [real.full(name) for name in GOLD]
        pair = scripted(real.loaded, oracle(16, *texts, wrong_every=wrong_every))
        found[steps] = {}
        for name in GOLD:
            limit = len(real.plain[name].tokens)
            (found[steps][name],) = pair_open(
                pair, [real.prompts[name]], max_tokens=limit, num_logprobs=3
            )
        pair.run()
        for answer in found[steps].values():
            check_accounts(pair, answer, 40)
    return found


@pytest.mark.parametrize("steps", STEPS[1:])
def test_b030_b064_logprobs_are_each_tokens_own(
    answers: dict[str, dict[str, Answer]], steps: str
) -> None:
    """B030, B016, B064: as plain, token by token, whatever the number of tokens in a step."""
    for name, plain in answers["plain"].items():
        if name not in answers[steps]:
            continue
        got = answers[steps][name]
        assert got.tokens == plain.tokens, name
        ours = [entry for v in got.verdicts for entry in v.logprobs]
        theirs = [entry for v in plain.verdicts for entry in v.logprobs]
        assert [e.token_id for e in ours] == [e.token_id for e in theirs] == got.tokens
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
            assert a.top[0][0] == b.top[0][0] and len(a.top) == 3
    assert max(len(v.tokens) for a in answers[steps].values() for v in a.verdicts) > 1


def test_logprobs_of_p_paris(answers: dict[str, dict[str, Answer]]) -> None:
    """B062's numbers: the raw log probabilities of the first three tokens."""
    entries = [e for v in answers["long runs"]["P-PARIS"].verdicts for e in v.logprobs]
    assert [e.logprob for e in entries[:3]] == pytest.approx([-0.2581, -0.3801, -1.0093], abs=2e-3)


CASES = [
    # kind, prompt, stop, text, number of tokens
    ("B017", "P-HA", [" ha ha ha"], " hah", 5),
    ("B018", "P-COUNT", ["2"], "1, ", 4),
    ("B020", "P-FOX", ["a very long stop string that never occurs", " fox"], " brown", 2),
    ("B021", "P-NUMS", [", 7, 9"], None, None),
    ("B031", "P-COUNT", [], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10", 30),
    ("B011", "P-COUNT", ["never"], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10", 30),
]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_text_ends_where_it_must(
    real: RealTarget, answers: dict[str, dict[str, Answer]], steps: str, case: tuple
) -> None:
    """B011, B017, B018, B020, B021, B031, and B110: usage never above the whole."""
    _, name, stop, text, count = case
    answer = answers[steps][name]
    limit = len(real.plain[name].tokens)
    deltas = real.shown(answer, stop=stop, max_tokens=limit, num_logprobs=3)
    if text is None:
        text, count = real.tokenizer.decode(answer.tokens), len(answer.tokens)
    assert text_of(deltas) == text
    ids = [i for d in deltas for i in d.token_ids]
    assert ids == answer.tokens[:count] == [e.token_id for d in deltas for e in d.logprobs]
    usage = deltas[-1].totals.usage
    assert usage.completion_tokens == count
    assert usage.accepted_prediction_tokens + usage.rejected_prediction_tokens <= count


@pytest.mark.parametrize("steps", STEPS)
def test_b026_first_blank_and_joined_text(
    real: RealTarget, answers: dict[str, dict[str, Answer]], steps: str
) -> None:
    """B026, B025: chunks join to the text of all ids, blanks and split characters included."""
    for name in ("P-PARIS", "P-OHM", "P-LLAMA", "P-NUMS"):
        answer = answers[steps][name]
        deltas = real.shown(answer, max_tokens=len(answer.tokens), num_logprobs=0)
        assert text_of(deltas) == real.tokenizer.decode(answer.tokens)
    paris = answers[steps]["P-PARIS"]
    assert text_of(real.shown(paris, max_tokens=99, num_logprobs=0)).startswith(" Paris.\n\n")


@pytest.mark.parametrize("steps", STEPS)
def test_b028_b029_bytes_of_partial_characters(
    real: RealTarget, answers: dict[str, dict[str, Answer]], steps: str
) -> None:
    """B028: the bytes of each half of " Ω". B029: every alternative has its own bytes."""
    entries: list[TokenLogprobs] = [e for v in answers[steps]["P-OHM"].verdicts for e in v.logprobs]
    token_bytes = real.tokenizer.token_bytes
    assert [list(token_bytes(e.token_id)) for e in entries[:2]] == [[32, 206], [169]]
    for entry in entries[:6]:
        assert len(entry.top) == 3 and all(token_bytes(token) for token, _ in entry.top)
        assert len({token_bytes(token) for token, _ in entry.top}) == 3


@pytest.mark.parametrize("draft", ["bad", "ngram"])
def test_b066_a_grammar_refuses_what_was_drafted(
    real: RealTarget, bad: LoadedModel, draft: str
) -> None:
    """B066: D-BAD and prompt lookup under response_format: valid, = OFF, and the engine lives."""
    prompt = real.chat("Give a JSON object with key a.")
    count = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"name": "count", "schema": {**count, "additionalProperties": False}}
    formats = [{"type": "json_object"}, {"type": "json_schema", "json_schema": named}]
    forms = [structured(real, response_format=value) for value in formats]
    answers = {}
    for speculate in (False, True):
        pair = real.pair(bad if draft == "bad" else None, grammars=real.card.grammars)
        options = {"max_tokens": 40, "speculate": speculate}
        opened = [pair_open(pair, [prompt], structured_output=f, **options)[0] for f in forms]
        pair.run()
        answers[speculate] = opened
        drain(pair)
        assert pair.target_engine.usage().num_held == 0
    assert [a.tokens for a in answers[True]] == [a.tokens for a in answers[False]]
    free, closed = answers[True]
    assert json.loads(real.tokenizer.decode(closed.tokens)).keys() == {"a"}
    assert closed.finish_reason == "stop"
    # Any object: 40 tokens may not be enough for this one, but they begin one.
    assert free.finish_reason == "length" or json.loads(real.tokenizer.decode(free.tokens))
    began = real.card.grammars.constraint(forms[0])
    began.commit(free.tokens)
    assert began.allowed(()) is not None


def test_b067_a_long_accepted_run_is_checked_to_its_end(real: RealTarget) -> None:
    """B067: regex [0-9]+ with D-SELF gamma 8."""
    form = structured(real, structured_outputs={"regex": "[0-9]+"})
    pair = real.pair(real.loaded, speculation=fixed(8), grammars=real.card.grammars)
    prompt = real.chat("Say a number.")
    (answer,) = pair.generate([prompt], max_tokens=20, structured_output=form)
    assert re.fullmatch("[0-9]+", real.tokenizer.decode(answer.tokens))
    assert answer.num_accepted >= 15 and max(len(v.tokens) for v in answer.verdicts) == 9


def structured(real: RealTarget, **body: Any) -> Any:
    """The form that a request asks for, as the API reads it."""
    asked = read_chat(real.card, {"messages": [{"role": "user", "content": "x"}], **body})
    return asked.answers[0].generation.sampling.structured_output


def test_b066_b067_what_cannot_be_used_is_refused_by_name(real: RealTarget) -> None:
    """B066, B067: vLLM's old names, and forms that do not compile, are a 400 with the field."""
    wrong = {
        "guided_regex": "[0-9]+",
        "response_format": {"type": "json"},
        "structured_outputs": {"regex": "["},
    }
    for name, value in wrong.items():
        body = {"messages": [{"role": "user", "content": "Give a number."}], name: value}
        with pytest.raises(InvalidRequestError, match=name):
            read_chat(real.card, body)
