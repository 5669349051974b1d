"""The rules by name. To add one: a pure module beside this file and a line in ``RULES``.

``lossless=True`` puts a rule under the exact-law suite (tests/contracts/test_rules.py).
Knows nothing of how the rules work; read by the API, the workers and the tests.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from specdist.speculation.rules.base import Verify


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """What the rest of the system must know of a rule before it is loaded."""

    name: str
    lossless: bool
    needs_draft_probs: bool  # the draft must draw its children and send its law

    def load(self) -> Verify:
        """The rule's ``verify``; imports its module."""
        module = importlib.import_module(f"specdist.speculation.rules.{self.name}")
        return cast(Verify, module.verify)


RULES: dict[str, RuleInfo] = {
    info.name: info
    for info in (
        RuleInfo("coupled", lossless=True, needs_draft_probs=False),
        RuleInfo("rejection", lossless=True, needs_draft_probs=True),
        RuleInfo("traversal", lossless=True, needs_draft_probs=True),
        RuleInfo("typical", lossless=False, needs_draft_probs=False),
    )
}


def get_rule(name: str) -> RuleInfo:
    """The rule of that name; ValueError lists the known ones."""
    if name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]
