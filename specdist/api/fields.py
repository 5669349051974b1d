"""Strict reading of one field at a time out of plain data (a JSON object, say).

Every function returns None for a field that is absent or null and raises
InvalidRequestError naming the field, the value and what is allowed. Knows no endpoint.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from specdist.errors import InvalidRequestError

MAX_SHOWN = 80  # characters of a wrong value that an error message quotes


def shown(value: Any) -> str:
    """A value as an error message quotes it: short, and safe in any encoding."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = ascii(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def refuse(name: str, expected: str, value: Any) -> InvalidRequestError:
    """The error for a field whose value is not what it must be."""
    return InvalidRequestError(f"{name} must be {expected}, got {shown(value)}", param=name)


def check_known(values: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """Refuse fields that nobody would read, by name."""
    for key in values:
        if key not in known:
            name = f"{where}{key}"
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            raise InvalidRequestError(
                f"unknown field {shown(name)}{hint}", param=name, code="unknown_parameter"
            )


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """An object, where one must stand."""
    if not isinstance(value, Mapping):
        raise refuse(name, "an object", value)
    return value


def integer(
    values: Mapping[str, Any], name: str, low: int, high: int | None = None, where: str = ""
) -> int | None:
    """A whole number in [low, high]."""
    value = values.get(name)
    if value is None:
        return None
    name = where + name
    if not is_integer(value):
        raise refuse(name, "an integer", value)
    if value < low or (high is not None and value > high):
        raise refuse(name, _range(low, high), value)
    return int(value)


def is_integer(value: Any) -> bool:
    """True for whole numbers; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(
    values: Mapping[str, Any],
    name: str,
    low: float,
    high: float,
    *,
    where: str = "",
    above: bool = False,
) -> float | None:
    """A number in [low, high], or in (low, high] when ``above``."""
    value = values.get(name)
    if value is None:
        return None
    name = where + name
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise refuse(name, "a number", value)
    in_range = low < value <= high if above else low <= value <= high
    if not in_range:  # so is not-a-number
        raise refuse(name, f"above {low} and at most {high}" if above else _range(low, high), value)
    return float(value)


def _range(low: float, high: float | None) -> str:
    return f"at least {low}" if high is None else f"between {low} and {high}"


def boolean(values: Mapping[str, Any], name: str, where: str = "") -> bool | None:
    """True or false."""
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise refuse(where + name, "true or false", value)
    return value


def string(values: Mapping[str, Any], name: str, where: str = "") -> str | None:
    """A text that can be encoded."""
    value = values.get(name)
    return None if value is None else check_text(value, where + name)


def check_text(value: Any, name: str) -> str:
    """Refuse what is no text, and text with half a surrogate pair (JSON can carry it)."""
    if not isinstance(value, str):
        raise refuse(name, "a string", value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise refuse(name, "valid Unicode without lone surrogates", value) from None
    return value


def token_id(value: Any, name: str, vocab_size: int) -> int:
    """A token id of the model."""
    if not is_integer(value):
        raise refuse(name, "an integer", value)
    if not 0 <= value < vocab_size:
        raise refuse(name, f"a token id between 0 and {vocab_size - 1}", value)
    return int(value)
