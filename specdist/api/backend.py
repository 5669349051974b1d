"""What the API needs from whatever generates tokens: implemented by the router.

Knows token ids only. Tests put a scripted backend here; ``deployments`` the real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from specdist.protocol.answer import TokenDelta
from specdist.protocol.health import HealthReport
from specdist.protocol.request import GenerationRequest


class Backend(Protocol):
    """Generates tokens for requests whose every field is checked and resolved."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Yield what each step committed; closing the iterator cancels the request."""

    async def health(self) -> HealthReport:
        """Say whether a request would be served now."""

    async def metrics_text(self) -> str:
        """Return the Prometheus text of the whole application."""
