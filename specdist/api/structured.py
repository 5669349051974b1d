"""What a request says about the form of its answer -> a spec that is known to compile.

OpenAI's ``response_format`` and vLLM's ``structured_outputs``. Schemas, patterns and choices
are compiled here, by the model's own ``Grammars``, so that what cannot be used is refused
before anything else is done for the request. Called by the readers of HTTP and gRPC requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from specdist.api import fields
from specdist.api.model_card import ModelCard
from specdist.errors import InvalidRequestError
from specdist.grammar import GrammarError
from specdist.protocol.request import StructuredOutput

FORMATS = ("text", "json_object", "json_schema")
KINDS = ("json", "json_object", "regex", "choice")
ANY_OBJECT = StructuredOutput("json_schema", '{"type": "object"}')
_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXPECTED_NAME = "1 to 64 letters, digits, underscores and dashes"


def read_structured(
    card: ModelCard, values: Mapping[str, Any], where: str = ""
) -> StructuredOutput | None:
    """The form that the answer must have; None: any text."""
    by_format = _read_format(card, values.get("response_format"), f"{where}response_format")
    asked = values.get("structured_outputs")
    if asked is None:
        return by_format
    name = f"{where}structured_outputs"
    if by_format is not None:
        raise InvalidRequestError(
            f"{name} must be absent where response_format says what the answer is", param=name
        )
    return _read_extension(card, asked, name)


def _read_format(card: ModelCard, value: Any, name: str) -> StructuredOutput | None:
    if value is None:
        return None
    value = fields.mapping(value, name)
    kind = value.get("type")
    if kind not in FORMATS:
        raise fields.refuse(f"{name}.type", f"one of {', '.join(FORMATS)}", kind)
    is_schema = kind == "json_schema"
    fields.check_known(value, ("type", "json_schema") if is_schema else ("type",), f"{name}.")
    if not is_schema:
        return _checked(card, ANY_OBJECT, f"{name}.type") if kind == "json_object" else None
    return _read_named_schema(card, value.get("json_schema"), f"{name}.json_schema")


def _read_named_schema(card: ModelCard, value: Any, name: str) -> StructuredOutput:
    value = fields.mapping(value, name)
    fields.check_known(value, ("name", "description", "schema", "strict"), f"{name}.")
    given = fields.string(value, "name", f"{name}.")
    if given is None or not _SCHEMA_NAME.fullmatch(given):
        raise fields.refuse(f"{name}.name", _EXPECTED_NAME, given)
    fields.string(value, "description", f"{name}.")
    fields.boolean(value, "strict", f"{name}.")  # the schema binds in either case
    schema = fields.mapping(value.get("schema"), f"{name}.schema")
    return _schema(card, schema, f"{name}.schema")


def _read_extension(card: ModelCard, value: Any, name: str) -> StructuredOutput | None:
    value = fields.mapping(value, name)
    fields.check_known(value, KINDS, f"{name}.")
    given = [k for k in KINDS if value.get(k) is not None and value[k] is not False]
    if len(given) != 1:
        raise InvalidRequestError(
            f"{name} must hold exactly one of {', '.join(KINDS)}, "
            f"got {' and '.join(given) or 'none'}",
            param=name,
        )
    (kind,) = given
    where = f"{name}.{kind}"
    match kind:
        case "json":
            return _schema(card, _parsed(value["json"], where), where)
        case "json_object":
            fields.boolean(value, kind, f"{name}.")
            return _checked(card, ANY_OBJECT, where)
        case "regex":
            pattern = fields.check_text(value["regex"], where)
            return _checked(card, StructuredOutput("regex", pattern), where)
        case _:
            return _choice(card, value["choice"], where)


def _parsed(schema: Any, name: str) -> Any:
    """A schema, also where it comes as the text of one."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} must be a JSON schema: {error}", param=name) from None


def _schema(card: ModelCard, schema: Any, name: str) -> StructuredOutput:
    schema = fields.mapping(schema, name)
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise InvalidRequestError(f"{name} is nested too deeply", param=name) from None
    fields.check_text(text, name)
    return _checked(card, StructuredOutput("json_schema", text), name)


def _choice(card: ModelCard, choices: Any, name: str) -> StructuredOutput:
    if not isinstance(choices, (list, tuple)) or not choices:
        raise fields.refuse(name, "a list of strings that is not empty", choices)
    for i, choice in enumerate(choices):
        fields.check_text(choice, f"{name}[{i}]")
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    return _checked(card, StructuredOutput("choice", text), name)


def _checked(card: ModelCard, spec: StructuredOutput, name: str) -> StructuredOutput:
    try:
        card.grammars.check(spec)
    except GrammarError as error:
        raise InvalidRequestError(f"{name} cannot be used: {error}", param=name) from None
    return spec
