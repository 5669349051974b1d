"""Chat templates: the model's own Jinja template, run in a sandbox.

Offers what the templates on model hubs expect: trimmed blocks, loop controls,
``raise_exception``, ``strftime_now``, ``tojson`` and ``{% generation %}`` blocks. Knows
no tokens. Used by ``specdist.api.tokenizer``.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from specdist.errors import InvalidRequestError, ModelError


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; here it just renders."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and kind)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One model's template; ``None`` for a model that has none."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = None if source is None else _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template cannot be read: {error}") from None

    @property
    def exists(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Lay out a conversation up to the assistant's turn; raises InvalidRequestError.

        What the template itself refuses (an order of roles, say) is the caller's mistake
        and comes back with the template's own words.
        """
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template: use a plain prompt", param="messages"
            )
        try:
            return self._template.render(
                messages=[dict(m) for m in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None
