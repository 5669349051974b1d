"""What a check finds: one problem, naming the object, the field and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.k8s.gate.manifests import Manifests


class Problem(NamedTuple):
    """One thing that is wrong in a set of manifests."""

    subject: str  # kind/name
    field: str  # dotted path
    message: str

    def __str__(self) -> str:
        return f"{self.subject} {self.field}: {self.message}"


Check = Callable[["Manifests"], list[Problem]]


def name_of(document: dict[str, Any]) -> str:
    """kind/name of an object."""
    return f"{document.get('kind')}/{document.get('metadata', {}).get('name')}"
