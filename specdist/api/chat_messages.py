"""Checks the messages of a chat and brings them into the form that templates expect.

Text only: parts of other kinds, tool calls and audio are refused by name. The role
"developer" is today's name for "system" and is handed on as such. Several text parts of
one message are joined by line breaks, as other servers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdist.api import fields
from specdist.errors import InvalidRequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
_KNOWN = ("role", "content", "name", "tool_call_id", "refusal")
_UNSUPPORTED = ("tool_calls", "function_call", "audio", "reasoning_content", "annotations")


def read_messages(values: Any, param: str = "messages") -> list[dict[str, str]]:
    """A list of {"role", "content", ...} with plain text contents."""
    if not isinstance(values, (list, tuple)):
        raise fields.refuse(param, "a list of messages", values)
    if not values:
        raise InvalidRequestError(f"{param} must hold at least one message, got none", param=param)
    return [_read_message(value, f"{param}[{i}]") for i, value in enumerate(values)]


def _read_message(value: Any, name: str) -> dict[str, str]:
    message = {k: v for k, v in fields.mapping(value, name).items() if v not in (None, [])}
    where = f"{name}."
    for key in _UNSUPPORTED:
        if key in message:
            raise InvalidRequestError(
                f"{where}{key} is not supported", param=where + key, code="unsupported_parameter"
            )
    fields.check_known(message, _KNOWN, where)
    role = message.get("role")
    if role not in ROLES:
        raise fields.refuse(f"{where}role", f"one of {', '.join(ROLES)}", role)
    read = {
        "role": "system" if role == "developer" else str(role),
        "content": _read_content(value.get("content"), f"{where}content"),
    }
    for key in ("name", "tool_call_id"):
        if (text := fields.string(message, key, where)) is not None:
            read[key] = text
    return read


def _read_content(value: Any, name: str) -> str:
    if not isinstance(value, (list, tuple)):
        return fields.check_text(value, name)
    if not value:
        raise fields.refuse(name, "a string or a list of text parts", value)
    return "\n".join(_read_part(part, f"{name}[{i}]") for i, part in enumerate(value))


def _read_part(value: Any, name: str) -> str:
    part: Mapping[str, Any] = fields.mapping(value, name)
    if part.get("type") != "text":
        expected = '"text" (other kinds are not supported)'
        raise fields.refuse(f"{name}.type", expected, part.get("type"))
    fields.check_known(part, ("type", "text"), f"{name}.")
    return fields.check_text(part.get("text"), f"{name}.text")
