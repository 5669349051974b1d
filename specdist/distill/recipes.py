"""What is known about particular public prompt files, beyond their format.

One entry a family of files, found by the file's name: rows to leave out, the language, the
part that is the prompt. To add one, add a line to RECIPES. Called by ``prompt_files``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LANGUAGES = {
    **{"ar": "Arabic", "bn": "Bengali", "de": "German", "en": "English", "es": "Spanish"},
    **{"fr": "French", "it": "Italian", "ja": "Japanese", "ko": "Korean", "pt": "Portuguese"},
    **{"ru": "Russian", "sw": "Swahili", "te": "Telugu", "th": "Thai", "zh": "Chinese"},
}
# MGSM translates the first 250 problems of GSM8K's test split. These rows (counted from 0) are
# translations of problems that Spec-Bench also asks, so they are left out.
MGSM_EXCLUDED = frozenset({73, 82, 161, 194, 229, 231})


class Recipe(NamedTuple):
    """How the rows of a file are read."""

    excluded_rows: frozenset[int] = frozenset()
    kind: str | None = None  # None: the file's own name
    language: str = "English"


RECIPES = {r"mgsm_([a-z]{2})\.tsv": Recipe(MGSM_EXCLUDED, "mgsm")}
_LANGUAGE_ENDING = re.compile(r"[._-]([a-z]{2})\.[a-z]+$")


def recipe_for(name: str) -> Recipe:
    """What is known about a file of this name; ``news_de.txt`` is taken to be German."""
    found = _LANGUAGE_ENDING.search(name)
    language = LANGUAGES.get(found[1], "English") if found else "English"
    for pattern, recipe in RECIPES.items():
        if re.fullmatch(pattern, name):
            return recipe._replace(language=language)
    return Recipe(language=language)
