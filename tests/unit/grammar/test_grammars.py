"""Specs compile once, what cannot be used is refused at once, and nothing takes long."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import llguidance
import pytest

from specdist.api.tokenizer import Tokenizer
from specdist.grammar import GrammarError, Grammars, limits
from specdist.grammar import grammars as room
from specdist.protocol.request import StructuredOutput
from specdist.speculation.constraint import ConstraintError
from tests.structured_cases import CHOICES, PATTERNS, SCHEMAS
from tests.unit.api.fakes import byte_level_core, sentencepiece_core

MAX_CPU_S = 1.0  # of one spec: far from a hang, on a busy machine too


def schema(value: Any) -> StructuredOutput:
    return StructuredOutput("json_schema", json.dumps(value))


def nested(depth: int, keyword: str = "items") -> Any:
    value: Any = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "array", "items": value} if keyword == "items" else {keyword: [value]}
    return value


def refused(grammars: Grammars, spec: StructuredOutput) -> str:
    """The reason, which came within the time that a hang would not need."""
    began = time.thread_time()
    with pytest.raises(GrammarError) as caught:
        grammars.check(spec)
    assert time.thread_time() - began < MAX_CPU_S
    return str(caught.value)


def test_all_cases_compile(grammars: Grammars) -> None:
    for value in SCHEMAS.values():
        grammars.check(schema(value))
    for pattern in PATTERNS:
        grammars.check(StructuredOutput("regex", pattern))
    for choices in CHOICES:
        grammars.check(StructuredOutput("choice", json.dumps(choices)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"not": {"type": "integer"}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "array", "contains": {}}, "contains"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "array", "items": [{}], "additionalItems": False}, "additionalItems"),
        ({"type": "integer", "divisibleBy": 3}, "divisibleBy"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "strin"}, "strin"),
        ({"type": "object", "required": "a"}, "required"),
        ({"enum": []}, "nsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"oneOf": [{"type": "object"}, {"minProperties": 1}]}, "anyOf"),
        ({"$ref": "#/$defs/none"}, "/$defs/none"),
        ({"$ref": "https://example.com/x.json"}, "https://example.com"),
        ({"$ref": "#"}, "nothing can match"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"type": "string", "pattern": "["}, "unclosed"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ([], "object"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(
    grammars: Grammars, value: Any, reason: str
) -> None:
    assert reason in refused(grammars, schema(value))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "unclosed"),
        ("a(?=b)", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"\bfoo", "lookarounds"),
        (r"[^\s\S]", "nothing can match"),
        ("*", "repetition"),
        ("a" * (limits.MAX_STRING_CHARS + 1), "at most 4096 characters"),
        ("(" * 2000 + "a" + ")" * 2000, ""),
        ("\ud800", "surrogates"),
    ],
)
def test_patterns_that_cannot_be_used(grammars: Grammars, pattern: str, reason: str) -> None:
    assert reason in refused(grammars, StructuredOutput("regex", pattern))


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ([], "1 to 1024"),
        (["x"] * 1025, "1 to 1024"),
        ("abc", "a list"),
        ([""], "not empty"),
        ([5], "a string"),
        (["x" * 5000], "at most 4096"),
        ([f"{i}" + "x" * 4000 for i in range(20)], "at most 65536 characters"),
    ],
)
def test_choices_that_cannot_be_used(grammars: Grammars, choices: Any, reason: str) -> None:
    assert reason in refused(grammars, StructuredOutput("choice", json.dumps(choices)))


HOSTILE: dict[str, Any] = {
    "deep": nested(100),
    "deeper": nested(200, "anyOf"),
    "product_of_alternatives": {
        "allOf": [{"anyOf": [{"minimum": i}, {"maximum": i}]} for i in range(30)]
    },
    "references_that_double": {
        "$defs": {
            **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(25)},
            "d25": {"type": "integer"},
        },
        "$ref": "#/$defs/d0",
    },
    "reference_loop": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "endless_value": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}},
        "required": ["a"],
    },
    "many_names": {"properties": {f"p{i}": {"type": "integer"} for i in range(1500)}},
    "long_enum": {"enum": [f"value number {i}" for i in range(3000)]},
    "long_const": {"const": "a" * 5000},
    "long_name": {"properties": {"a" * 5000: {}}},
    "huge_count": {"type": "array", "items": {"type": "integer"}, "minItems": 10**18},
    "huge_length": {"type": "string", "minLength": 10**6, "maxLength": 2 * 10**6},
    "huge_number": {"type": "integer", "minimum": 10**30},
    "infinity": {"type": "number", "maximum": float("inf")},
    "not_a_number": {"type": "number", "maximum": float("nan")},
    "large_multiple": {"type": "integer", "multipleOf": 1_000_003},
    "fine_multiple": {"type": "number", "multipleOf": 1.0000007},
    "nested_counts": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"},
    "backtracking": {"type": "string", "pattern": "^(x+x+)+y$", "minLength": 500},
    "too_long": {"description": "x" * 70_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_never_hang(grammars: Grammars, name: str) -> None:
    """Refused, or compiled and walked: either within a second of CPU."""
    began = time.process_time()
    try:
        constraint = grammars.constraint(schema(HOSTILE[name]))
    except GrammarError:
        constraint = None
    path: list[int] = []
    for _ in range(20 if constraint is not None else 0):
        allowed = constraint.allowed(path)
        assert allowed is not None and allowed.any()
        path.append(int(allowed.nonzero()[0][-1]))
    assert time.process_time() - began < MAX_CPU_S


def test_nesting_is_counted_as_it_is_written(grammars: Grammars) -> None:
    grammars.check(schema(nested(limits.MAX_DEPTH - 2)))
    assert "64 levels" in refused(grammars, schema(nested(limits.MAX_DEPTH)))


def test_names_of_properties_are_not_keywords(grammars: Grammars) -> None:
    names = ("x-guidance", "multipleOf", "additionalItems", "not", "$ref", "pattern")
    grammars.check(schema({"type": "object", "properties": {n: {"const": 1} for n in names}}))


def test_asking_again_costs_nothing(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = schema({"const": "once"}), schema({"const": "once", "not": {}})
    grammars.check(good)
    refused(grammars, bad)
    monkeypatch.setattr(Grammars, "_compile", None)  # would fail if it were called
    grammars.check(good)
    assert "not" in refused(grammars, bad)
    with pytest.raises(GrammarError, match="not"):
        grammars.constraint(bad)


def test_answers_share_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their places, nor what the library's lexer can still do."""
    tight = llguidance.LLParserLimits(step_lexer_fuel=200_000, verbose_errors=False)
    monkeypatch.setattr(room, "LIMITS", tight)
    grammars = Grammars(tokenizer.to_json, [2])
    costly = StructuredOutput("regex", r"(?:\w{1,30} ?){1,200}[.!]")
    first, second = grammars.constraint(costly), grammars.constraint(costly)
    begin = first.allowed(())
    with pytest.raises(ConstraintError, match="too complex"):
        for token in tokenizer.encode("ab cd") * 50:
            first.commit([token])
            first.allowed(())
    assert begin is not None and (second.allowed(()) == begin).all()
    second.commit(tokenizer.encode("ab"))
    assert second.allowed(()) is not None


def test_only_the_latest_are_remembered(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_REMEMBERED", 2)
    grammars = Grammars(tokenizer.to_json, [2])
    specs = [schema({"const": i}) for i in range(3)]
    for spec in specs:
        grammars.check(spec)
    assert list(grammars._refusals) == specs[1:]
    grammars.check(specs[1])
    grammars.check(specs[0])
    assert list(grammars._refusals) == [specs[1], specs[0]]


def test_compiling_that_takes_too_long_is_given_up(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def never(*_: object) -> None:
        goes_on.wait(60)

    grammars = Grammars(tokenizer.to_json, [2])
    with monkeypatch.context() as patch:
        patch.setattr(room, "COMPILE_TIMEOUT_S", 0.05)
        patch.setattr(Grammars, "_compile", never)
        assert refused(grammars, schema({})) == "it takes longer than 0.05 s to compile"
    goes_on.set()
    grammars.check(schema({}))  # the machine was busy, the schema is none the worse for it


def test_the_vocabulary_is_read_when_it_is_needed(tokenizer: Tokenizer) -> None:
    asked: list[int] = []

    def read() -> str:
        asked.append(1)
        return tokenizer.to_json()

    grammars = Grammars(read, [2])
    assert not asked
    grammars.check(schema({}))
    grammars.check(schema({"type": "null"}))
    assert len(asked) == 1


def test_models_without_a_usable_vocabulary_refuse() -> None:
    assert "no end-of-sequence" in refused(Grammars(lambda: "{}", []), schema({}))
    assert "tokenizer is not supported" in refused(Grammars(lambda: "{}", [2]), schema({}))


@pytest.mark.parametrize("kind", ["demo", "byte_level", "sentencepiece"])
def test_tokens_are_the_bytes_that_the_api_shows(kind: str, tokenizer: Tokenizer) -> None:
    cores = {"byte_level": byte_level_core, "sentencepiece": sentencepiece_core}
    ours = tokenizer if kind == "demo" else Tokenizer(cores[kind](), eos_token_ids=[2])
    vocabulary = llguidance.LLTokenizer(ours.to_json(), eos_token=[2])
    ordinary = set(range(ours.vocab_size)) - ours.special_ids
    assert len(ordinary) > 200
    for token_id in ordinary:
        mine = ours.token_bytes(token_id)
        # 0xFF is in no UTF-8 text: the library's own mark for special tokens.
        if ours.token(token_id) != "<unk>" and not mine.startswith(b"\xff"):
            assert vocabulary.decode_bytes([token_id]) == mine
