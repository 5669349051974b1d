"""What a spec may look like before it is compiled: size, depth, numbers, keywords.

The grammar library has limits of its own and refuses keywords that it does not implement; here
stand the limits that it lacks, so that no spec takes long to compile or to walk, and keywords of
old drafts that it would pass over. Called by ``grammars``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from specdist.grammar.errors import GrammarError
from specdist.protocol.request import StructuredOutput

MAX_TEXT_CHARS = 64 << 10  # a schema, or a list of choices
MAX_STRING_CHARS = 4096  # a pattern, a name, a string to be matched as it is
MAX_CHOICES = 1024
MAX_DEPTH = 64  # arrays and objects within each other, as the schema is written
MAX_MULTIPLE_OF = 10_000  # in units of the last decimal place: so many states has its automaton
MAX_NUMBER = 2**63

# Where the parts of a schema stand.
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"),
    *("not", "if", "then", "else", "contains", "propertyNames"),
)
_LITERAL = ("const", "enum", "pattern", "format", "required", "$ref")
# Keywords that assert something and that the library passes over.
_REFUSED = ("additionalItems", "divisibleBy", "disallow", "extends", "x-guidance")


def check_spec(spec: StructuredOutput) -> None:
    """Raise GrammarError for what is too large, too deep, or would be passed over."""
    if spec.kind == "regex":
        _check_string(spec.text, "the pattern")
        return
    if len(spec.text) > MAX_TEXT_CHARS:
        raise GrammarError(
            f"it must have at most {MAX_TEXT_CHARS} characters as JSON, got {len(spec.text)}"
        )
    try:
        value = json.loads(spec.text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it must be JSON: {error}") from None
    if spec.kind == "choice":
        _check_choices(value)
    elif spec.kind == "json_schema":
        _check_plain(value)
        _check_schema(value)
    else:
        raise GrammarError(f"kind must be json_schema, regex or choice, got {spec.kind!r}")


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise GrammarError(f"choices must be a list of 1 to {MAX_CHOICES} strings")
    for i, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise GrammarError(f"choice {i} must be a string that is not empty")
        _check_string(choice, f"choice {i}")


def _check_plain(schema: Any) -> None:
    """Depth and numbers of any JSON value, without recursion."""
    level = [schema]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        for value in level:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                _check_number(value)
        level = [part for value in level for part in _parts(value)]
    if level:
        raise GrammarError(f"it must not be nested deeper than {MAX_DEPTH} levels")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_number(value: float) -> None:
    if not math.isfinite(value) or (isinstance(value, int) and abs(value) >= MAX_NUMBER):
        raise GrammarError(f"numbers must lie between -2**63 and 2**63, got {str(value)[:40]}")


def _check_schema(schema: Any) -> None:
    """The keywords of a schema and of all its parts; depth was checked before."""
    if not isinstance(schema, dict):
        return  # true and false are schemas; anything else the library refuses
    for keyword, value in schema.items():
        if keyword in _REFUSED:
            raise GrammarError(f"the keyword {keyword} is not supported")
        if keyword == "multipleOf":
            _check_multiple_of(value)
        elif keyword in _LITERAL:
            for text in _strings(value):
                _check_string(text, keyword)
        for part in _schemas_in(keyword, value):
            _check_schema(part)


def _schemas_in(keyword: str, value: Any) -> Iterator[Any]:
    if keyword in _NAMED and isinstance(value, dict):
        for name, part in value.items():
            _check_string(name, f"a name in {keyword}")
            yield part
    elif keyword in (*_LISTS, *_SINGLE):
        yield from value if isinstance(value, list) else [value]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def _check_multiple_of(value: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return  # the library names the type
    exact = Decimal(str(value))
    exponent = exact.as_tuple().exponent
    units = exact.scaleb(-exponent) if isinstance(exponent, int) and exponent < 0 else exact
    if not 0 < units <= MAX_MULTIPLE_OF:
        raise GrammarError(
            f"multipleOf must be above 0 and have at most {MAX_MULTIPLE_OF} units of its last "
            f"decimal place, got {value}"
        )


def _check_string(text: str, what: str) -> None:
    if len(text) > MAX_STRING_CHARS:
        raise GrammarError(
            f"{what} must have at most {MAX_STRING_CHARS} characters, got {len(text)}"
        )
