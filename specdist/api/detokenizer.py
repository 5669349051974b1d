"""Token ids to text, piece by piece, byte for byte what one decode of all ids gives.

Only an incomplete UTF-8 sequence is held back. The leading blank that SentencePiece
style decoders strip is stripped once, at the start of the whole text: when a prompt
with visible text stands before, nothing is stripped. Used by ``specdist.api.answer``.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from specdist.api.tokenizer import Tokenizer

# Byte-fallback decoders write one U+FFFD for each byte that is no text; byte-level ones
# one for each broken sequence, which is Python's "replace".
_EACH_BYTE = "specdist_replace_each_byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)


class Detokenizer:
    """One text in the making.

    The join of all ``push`` results and ``flush`` equals ``tokenizer.decode`` of the ids
    (after a prompt: decode of both, less decode of the prompt). One exception, where that
    would need to take text back: byte-fallback decoders turn a whole run of bytes into
    U+FFFD when any of it is broken; here the complete characters before the break stand.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        style = tokenizer.style
        errors = "replace" if style.byte_level else _EACH_BYTE
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        shown_before = any(not self._is_hidden(i) for i in prompt_token_ids)
        self._num_to_strip = 0 if shown_before else style.strip_start
        self._first_drops = "" if shown_before else style.drops_first_blanks

    def push(self, token_id: int) -> str:
        """Take one token; return the text that it completes (may be empty)."""
        if self._is_hidden(token_id):
            return ""
        return self._strip(self._decoder.decode(self._bytes(token_id)))

    def flush(self) -> str:
        """End the text: an incomplete character becomes U+FFFD."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _is_hidden(self, token_id: int) -> bool:
        return self._skip and token_id in self._tokenizer.special_ids

    def _bytes(self, token_id: int) -> bytes:
        if not self._first_drops:
            return self._tokenizer.token_bytes(token_id)
        token = (self._tokenizer.token(token_id) or "").replace(self._first_drops, "")
        self._first_drops = ""
        return self._tokenizer.style.token_bytes(token)

    def _strip(self, text: str) -> str:
        if not self._num_to_strip or not text:
            return text
        blanks = len(text) - len(text.lstrip(" "))
        taken = min(blanks, self._num_to_strip)
        self._num_to_strip = self._num_to_strip - taken if taken == len(text) else 0
        return text[taken:]
