"""What each token id stands for, in bytes: read off the decoder of a tokenizer.json.

Two families cover the decoder-only models: byte-level BPE (every character of a token
stands for one byte) and SentencePiece style ("▁" is a blank, "<0xE6>" is one byte).
Knows nothing of requests; ``specdist.api.tokenizer`` and the detokenizer use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from specdist.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class DecoderStyle:
    """How a tokenizer's tokens become text."""

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()  # in order, within one token
    byte_fallback: bool = False
    strip_start: int = 0  # blanks taken off the start of the whole text
    drops_first_blanks: str = ""  # this character vanishes from the first token of the text

    def token_bytes(self, token: str) -> bytes:
        """The bytes of one token, wherever it stands (blanks at the start included)."""
        if self.byte_level:
            return _byte_level_bytes(token)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8")


@cache
def _byte_of_character() -> Mapping[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    alphabet = {chr(b): b for b in printable}
    alphabet.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return alphabet


def _byte_level_bytes(token: str) -> bytes:
    alphabet = _byte_of_character()
    try:
        return bytes([alphabet[c] for c in token])
    except KeyError:  # an added token with characters outside of the alphabet is plain text
        return token.encode("utf-8")


def read_style(decoder: Mapping[str, Any] | None) -> DecoderStyle:
    """Read the ``decoder`` entry of a tokenizer.json; raises ModelError for unknown kinds."""
    if decoder is None:
        raise ModelError("tokenizer.json has no decoder: its tokens cannot be turned into text")
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    byte_level, byte_fallback, strip_start, first = False, False, 0, ""
    replacements: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                strip_start = start
            case {"type": "Metaspace", "replacement": old}:
                replacements.append((old, " "))
                first = "" if step.get("prepend_scheme", "always") == "never" else old
            case _:
                raise ModelError(f"tokenizer.json: decoder step {step!r} is not supported")
    return DecoderStyle(byte_level, tuple(replacements), byte_fallback, strip_start, first)
