"""The known drafting methods: name -> where its class stands. Imported lazily.

To add one: a file in this folder with a class that follows ``base.Drafter``, and a line here.
"""

from __future__ import annotations

import importlib
from typing import Any

from specdist.errors import ConfigError

DRAFTERS: dict[str, tuple[str, str]] = {
    "draft_model": ("specdist.drafters.draft_model", "DraftModel"),
    "ngram": ("specdist.drafters.prompt_lookup", "PromptLookup"),
}


def drafter_class(name: str) -> Any:
    """The class of a drafting method; the error lists the known names."""
    if name not in DRAFTERS:
        raise ConfigError(f"unknown drafter {name!r}; known: {', '.join(sorted(DRAFTERS))}")
    module, class_name = DRAFTERS[name]
    return getattr(importlib.import_module(module), class_name)
