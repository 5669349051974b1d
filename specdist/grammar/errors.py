"""The one error of this room. The API turns it into a refusal that names the field."""

from __future__ import annotations


class GrammarError(ValueError):
    """A schema, pattern or list of choices cannot be used; the message says why."""
