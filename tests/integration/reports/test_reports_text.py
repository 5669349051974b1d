"""Groups B, C and E: real verdicts through the API's text side, runs of every length."""

from __future__ import annotations

import pytest

from specdist.api.openai_requests import read_chat
from specdist.errors import InvalidRequestError
from specdist.protocol.verdict import TokenLogprobs
from tests.integration.reports.real_target import RealTarget, pair_open, text_of
from tests.integration.reports.rigs import GOLD, check_accounts, oracle, scripted
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


@pytest.mark.parametrize(
    "field", [{"guided_regex": "[0-9]+"}, {"response_format": {"type": "json_object"}}]
)
def test_b066_b067_constraints_are_refused_by_name(real: RealTarget, field: dict) -> None:
    """B066, B067: no grammar is offered; asking for one is a 400 that names the field."""
    body = {"messages": [{"role": "user", "content": "Give a number."}], **field}
    with pytest.raises(InvalidRequestError, match=next(iter(field))):
        read_chat(real.card, body)
