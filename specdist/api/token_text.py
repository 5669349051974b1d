"""How one token is shown by itself, next to its log probability.

Every token has its own exact bytes; as text, a part of a character shows as U+FFFD, or,
where texts are keys that must differ, as OpenAI writes it: ``bytes:\\xf0\\x9f``.
Used by the OpenAI answers and the gRPC service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdist.api.tokenizer import Tokenizer
from specdist.protocol.verdict import TokenLogprobs

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity; OpenAI's number for it


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token and its log probability, ready for any wire format."""

    token_id: int
    text: str
    data: bytes
    logprob: float

    @property
    def key(self) -> str:
        """A text that differs between tokens with different bytes."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in self.data)


def show(tokenizer: Tokenizer, token_id: int, logprob: float = 0.0) -> ShownToken:
    """One token by itself; alternatives at one position never depend on each other."""
    data = tokenizer.token_bytes(token_id)
    text = data.decode("utf-8", errors="replace")
    return ShownToken(token_id, text, data, max(logprob, LOWEST_LOGPROB))


def show_chosen(tokenizer: Tokenizer, entry: TokenLogprobs) -> ShownToken:
    """The emitted token."""
    return show(tokenizer, entry.token_id, entry.logprob)


def show_top(tokenizer: Tokenizer, entry: TokenLogprobs, num_logprobs: int) -> Sequence[ShownToken]:
    """The likeliest tokens at the same position, as many as were asked for."""
    return [show(tokenizer, i, logprob) for i, logprob in entry.top[:num_logprobs]]
