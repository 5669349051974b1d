"""One answer's place in its grammar: EOS, paths there and back, and what is no path."""

from __future__ import annotations

import json
import random
import re

import llguidance
import numpy as np
import pytest

from specdist.api.tokenizer import Tokenizer
from specdist.grammar import Grammars, TokenConstraint
from specdist.grammar import grammars as room
from specdist.protocol.request import StructuredOutput
from specdist.speculation.constraint import ConstraintError, num_admitted, only_token
from tests.structured_cases import CHOICES, PATTERNS, SCHEMAS

EOS = 2


def specs() -> list[StructuredOutput]:
    return [
        *(StructuredOutput("json_schema", json.dumps(s)) for s in SCHEMAS.values()),
        *(StructuredOutput("regex", pattern) for pattern in PATTERNS),
        *(StructuredOutput("choice", json.dumps(choices)) for choices in CHOICES),
    ]


def choice(grammars: Grammars, *choices: str) -> TokenConstraint:
    return grammars.constraint(StructuredOutput("choice", json.dumps(choices)))


def ids(allowed: np.ndarray | None) -> list[int]:
    assert allowed is not None
    return [int(i) for i in np.flatnonzero(allowed)]


def test_the_end_is_allowed_where_the_grammar_may_end(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    a, b = tokenizer.encode("a") + tokenizer.encode("b")
    one = choice(grammars, "a", "ab")
    assert EOS not in ids(one.allowed(()))
    assert set(ids(one.allowed([a]))) == {EOS, b}
    assert ids(one.allowed([a, b])) == [EOS]  # nothing else may follow: it is forced
    assert only_token(one.allowed([a, b])) == EOS  # type: ignore[arg-type]
    assert ids(one.allowed([a, b, EOS])) == [EOS]


def test_every_end_token_of_the_model_ends(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer.to_json, [0, 2])
    (a,) = tokenizer.encode("a")
    assert ids(choice(grammars, "a").allowed([a])) == [0, 2]


def test_special_tokens_are_no_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    text = grammars.constraint(StructuredOutput("regex", r"(?s).*"))
    allowed = text.allowed(())
    assert allowed is not None
    assert {i for i in tokenizer.special_ids if allowed[i]} == {EOS}
    named = choice(grammars, "<|im_end|>")  # its text is spelled, its token is not taken for it
    assert num_admitted(named, [EOS]) == 0
    spelled = [i for part in ("<|", "im", "_", "end", "|>") for i in tokenizer.encode(part)]
    assert num_admitted(named, [*spelled, EOS]) == len(spelled) + 1


def test_what_may_follow_depends_on_the_tokens_alone(grammars: Grammars) -> None:
    """Whatever was tried and taken back before, or read at once: the same masks."""
    dice = random.Random(7)
    for spec in specs():
        walked, tokens = grammars.constraint(spec), []
        masks = []
        for _ in range(12):
            masks.append(walked.allowed(()))
            for _ in range(3):  # branches: allowed tokens, and any
                path: list[int] = []
                for _ in range(dice.randrange(1, 4)):
                    allowed = walked.allowed(path)
                    if allowed is None:
                        break
                    path.append(dice.choice(ids(allowed)))
                walked.allowed([*path, dice.randrange(49_152)])
            ordinary = [i for i in ids(masks[-1]) if i != EOS]
            if not ordinary:
                break
            tokens.append(dice.choice(ordinary))
            walked.commit(tokens[-1:])
        fresh = grammars.constraint(spec)
        for i, mask in enumerate(masks):
            assert np.array_equal(fresh.allowed(tokens[:i]), mask), (spec, i)  # type: ignore
        replayed = grammars.constraint(spec)
        replayed.commit(tokens[: len(masks) - 1])
        assert np.array_equal(replayed.allowed(()), masks[-1])  # type: ignore[arg-type]


def test_paths_that_are_not_admitted(grammars: Grammars, tokenizer: Tokenizer) -> None:
    yes, no = tokenizer.encode("yes"), tokenizer.encode("no")
    one = choice(grammars, "yes")
    assert one.allowed(no) is None
    assert one.allowed([*yes, *no]) is None
    assert [one.allowed([token]) for token in (-1, 49_152, 10**6)] == [None] * 3
    assert ids(one.allowed(yes)) == [EOS]  # a refused path leaves no trace
    assert num_admitted(one, [*yes, EOS, EOS, *no]) == len(yes) + 2
    assert num_admitted(one, [10**6]) == 0


def test_an_answer_that_does_not_match_is_told_with_the_next_question(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    one = choice(grammars, "yes")
    one.commit(tokenizer.encode("no"))
    with pytest.raises(ConstraintError, match="does not match"):
        one.allowed(())
    one.commit(tokenizer.encode("yes"))
    with pytest.raises(ConstraintError, match="does not match"):
        one.allowed([5])


def test_a_grammar_that_becomes_too_complex_is_told(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = llguidance.LLParserLimits(max_items_in_row=50, verbose_errors=False)
    monkeypatch.setattr(room, "LIMITS", tight)
    wide = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(40)}}
    one = Grammars(tokenizer.to_json, [2]).constraint(
        StructuredOutput("json_schema", json.dumps(wide))
    )
    one.commit(tokenizer.encode("{"))
    with pytest.raises(ConstraintError, match="too complex"):
        one.allowed(())


def test_masks_cannot_be_written_to(grammars: Grammars) -> None:
    allowed = choice(grammars, "yes").allowed(())
    assert allowed is not None and len(allowed) == 49_152
    with pytest.raises(ValueError, match="read-only"):
        allowed[0] = True


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_python_takes_them_for(
    grammars: Grammars, tokenizer: Tokenizer, pattern: str
) -> None:
    """Random answers match the whole pattern, as ``re`` sees it."""
    dice = random.Random(len(pattern))
    whole = re.compile(pattern.replace(r"\p{Lu}", "[^\\W\\d_a-z]").replace(r"\p{Ll}", r"\w"))
    for _ in range(5):
        one, tokens = grammars.constraint(StructuredOutput("regex", pattern)), []
        while not tokens or tokens[-1] != EOS:
            tokens.append(dice.choice(ids(one.allowed(tokens))))
            assert len(tokens) < 60
        text = tokenizer.decode(tokens)
        assert whole.fullmatch(text), (pattern, text)
