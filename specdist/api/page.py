"""The page at ``/`` and the files it loads: a chat that shows what speculation does.

The files stand in ``static/`` and are served as they are, under an address that changes
with their content, so that browsers may keep them for good. Nothing comes from elsewhere,
and the page's policy forbids it. Knows no backend: the page talks to the HTTP API like any
client. Used by ``specdist.api.openai``.
"""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from specdist.api.model_card import ModelCard

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
INDEX = "index.html"
KEEP = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"  # keep, but ask whether it has changed


@dataclass(frozen=True, slots=True)
class _File:
    """One file as it is sent."""

    body: bytes
    media_type: str


def read_static() -> dict[str, bytes]:
    """Every file of ``static/`` by name."""
    folder = resources.files("specdist.api") / "static"
    found = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}
    return dict(sorted(found.items()))


def etag(body: bytes) -> str:
    """A validator that changes with the content."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


class Page:
    """The page of one served model, in memory."""

    def __init__(self, card: ModelCard) -> None:
        files = read_static()
        version = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
        self._index = _fill(files.pop(INDEX).decode(), card, version).encode()
        self._version = version
        self._files = {
            name: _File(body, MEDIA_TYPES[name.rpartition(".")[2]]) for name, body in files.items()
        }

    def index(self, request: Request) -> Response:
        """The document; 304 to a browser that has it."""
        headers = {
            "Cache-Control": ASK_AGAIN,
            "Content-Security-Policy": POLICY,
            "ETag": etag(self._index),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if etag(self._index) in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self._index, headers=headers, media_type=MEDIA_TYPES["html"])

    def file(self, request: Request) -> Response | None:
        """One of its files; None when there is none of that name in that version."""
        found = self._files.get(request.path_params["name"])
        if found is None or request.path_params["version"] != self._version:
            return None
        headers = {"Cache-Control": KEEP, "X-Content-Type-Options": "nosniff"}
        return Response(found.body, headers=headers, media_type=found.media_type)


def _fill(template: str, card: ModelCard, version: str) -> str:
    rules = "".join(f"<option>{html.escape(rule)}</option>" for rule in card.allowed_rules)
    default = f"<option>{html.escape(card.rules.default)}</option>"
    values = {
        "$VERSION": version,
        "$MODEL": html.escape(card.name),
        "$MAX_LEN": str(card.max_model_len),
        "$RULES": rules.replace(default, default.replace("<option", "<option selected")),
    }
    for name, value in values.items():
        template = template.replace(name, value)
    return template
