"""Forms that an answer may be asked to have: JSON schemas of all kinds, patterns, choices.

Strings and arrays are bounded, so that the answer of a random model comes to an end.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def record(required: list[str] | None = None, **properties: Any) -> Schema:
    """A closed object; everything is required unless told."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def array(items: Any, low: int = 0, high: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


TEXT: Schema = {"type": "string", "maxLength": 6}
WHOLE: Schema = {"type": "integer", "minimum": -99, "maximum": 999}
NULL: Schema = {"type": "null"}
BOOL: Schema = {"type": "boolean"}
POINT = {"$defs": {"p": record(x=WHOLE, y=WHOLE)}}
NODE = record(v=WHOLE, next={"anyOf": [{"$ref": "#/$defs/node"}, NULL]})
BRANCH = record(n=WHOLE, kids=array({"$ref": "#/$defs/t"}, 0, 2))

OBJECTS: dict[str, Schema] = {
    "empty_object": {"type": "object", "additionalProperties": False},
    "one_integer": record(a={"type": "integer"}),
    "flat": record(name=TEXT, age=WHOLE, ok=BOOL),
    "some_optional": record(["b"], a=WHOLE, b=WHOLE, c=WHOLE),
    "all_optional": record([], a=WHOLE, b=NULL),
    "nested": record(a=record(b=record(c=record(d=BOOL)))),
    "additional_integers": {**record(a=WHOLE), "additionalProperties": WHOLE},
    "map_of_numbers": {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "maxProperties": 3,
    },
    "pattern_properties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,3}$": WHOLE},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "required_without_properties": {
        "type": "object",
        "required": ["z"],
        "additionalProperties": WHOLE,
    },
    "nullable_parts": record(
        a={"anyOf": [TEXT, NULL]}, b={"type": ["string", "null"], "maxLength": 3}
    ),
}
ARRAYS: dict[str, Schema] = {
    "integers": array(WHOLE, 0, 5),
    "between_two_and_four": array(BOOL, 2, 4),
    "exactly_eight": array({"enum": [0, 1]}, 8, 8),
    "tuple": {"type": "array", "prefixItems": [TEXT, WHOLE, NULL], "items": False, "minItems": 3},
    "open_tuple": {**array(BOOL, 1, 4), "prefixItems": [{"const": "k"}]},
    "matrix": array(array(WHOLE, 2, 2), 2, 2),
    "records": array(record(id=WHOLE, tag={"enum": ["a", "b"]}), 1, 3),
}
VALUES: dict[str, Schema] = {
    "enum_of_texts": {"enum": ["red", "green", "blue"]},
    "enum_of_anything": {"enum": ["a", 1, 2.5, None, True, [1, 2], {"k": "v"}]},
    "const_object": {"const": {"a": [1, {"b": None}], "é": "ü"}},
    "const_text": {"const": 'tab\tquote"back\\slash\nnew / ü 🦙'},
    "boolean": BOOL,
    "null": NULL,
    "several_types": {"type": ["integer", "null", "boolean"]},
    "integer_between": {"type": "integer", "minimum": 17, "maximum": 4711},
    "negative_integer": {"type": "integer", "minimum": -50, "maximum": -7},
    "integer_strictly_between": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "number_between": {"type": "number", "minimum": 0, "maximum": 1},
    "number_strictly_between": {
        "type": "number",
        "exclusiveMinimum": -1.5,
        "exclusiveMaximum": 2.25,
    },
    "multiple_of_five": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
}
TEXTS: dict[str, Schema] = {
    "length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "alternatives": {"type": "string", "pattern": "^(cat|dog|[a-f]{1,4}x)$"},
    "pattern_inside": {"type": "string", "pattern": "[0-9]", "maxLength": 8},
    "date": {"type": "string", "format": "date"},
    "date_time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "unicode_names": record(**{"größe": WHOLE, "名前": TEXT, "🦙": BOOL}),
    "unicode_enum": {"enum": ["日本語", "Ω", "🦙🙂", "e\u0301"]},
    "odd_names": record(
        **{"a b": WHOLE, 'quote"': WHOLE, "back\\slash": WHOLE, "": WHOLE, "new\nline": WHOLE}
    ),
}
COMBINED: dict[str, Schema] = {
    "any_of_types": {"anyOf": [WHOLE, TEXT, NULL]},
    "any_of_records": {
        "anyOf": [record(kind={"const": "cat"}, lives=WHOLE), record(kind={"const": "dog"})]
    },
    "one_of_records": {"oneOf": [record(t={"const": 1}, a=WHOLE), record(t={"const": 2}, b=TEXT)]},
    "all_of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "ref_to_defs": {**POINT, **record(start={"$ref": "#/$defs/p"}, end={"$ref": "#/$defs/p"})},
    "ref_to_definitions": {
        "definitions": {"n": {"type": "integer", "minimum": 1, "maximum": 5}},
        **array({"$ref": "#/definitions/n"}),
    },
    "ref_with_siblings": {
        "$defs": {"s": {"type": "string"}},
        "$ref": "#/$defs/s",
        "maxLength": 4,
    },
    "linked_list": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "tree": {"$defs": {"t": BRANCH}, "$ref": "#/$defs/t"},
    "recursion_at_the_root": record(["v"], v=WHOLE, more={"$ref": "#"}),
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/x",
        "title": "T",
        "description": "D" * 5000,
        **record(a={"type": "integer", "description": "n", "default": 3, "examples": [1]}),
    },
    "as_pydantic_writes": {
        "$defs": {
            "Color": {"enum": ["r", "g"], "title": "Color", "type": "string"},
            "Item": {
                "properties": {
                    "name": {"maxLength": 5, "title": "Name", "type": "string"},
                    "color": {"$ref": "#/$defs/Color"},
                    "price": {
                        "anyOf": [{"type": "number", "minimum": 0, "maximum": 10}, NULL],
                        "default": None,
                    },
                },
                "required": ["name", "color"],
                "title": "Item",
                "type": "object",
                "additionalProperties": False,
            },
        },
        **record(items=array({"$ref": "#/$defs/Item"}, 0, 2)),
    },
    "steps": record(steps=array(record(explanation=TEXT, output=TEXT), 0, 2), final_answer=TEXT),
}
SCHEMAS = {**OBJECTS, **ARRAYS, **VALUES, **TEXTS, **COMBINED}

PATTERNS = (
    r"[0-9]{1,8}",
    r"^(yes|no|maybe)$",
    r"\d{3}-\d{4}",
    r"[a-z]{2,5}@[a-z]{2,5}\.(com|org)",
    r"(?:[A-F0-9]{2}:){2}[A-F0-9]{2}",
    r"Ω{1,3}[αβγ]?",
    r"[^\x00-\x7f]{2}",
    r"(?i)specdist",
    r"(a|b)c{0,3}",
    r"\p{Lu}\p{Ll}{0,4}!",
)
CHOICES = (
    ("positive", "negative", "neutral"),
    ("a", "ab", "abc"),
    ('"quoted"', "back\\slash", "new\nline"),
    ("日本語", "日本", "🦙"),
    ("only one thing that is said in many tokens",),
)
