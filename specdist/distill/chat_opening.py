"""Where a user turn begins and ends in a model's own chat template, found by trying.

The template is rendered with a sentinel as the user's words and cut there: what stands
before is the opening that the target continues as the user, what follows begins with what
ends the turn. So any template works, and a model without one starts from its BOS token.
Called by ``answers``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from specdist.api.tokenizer import Tokenizer
from specdist.distill import templates
from specdist.distill.prompt_types import Prompt
from specdist.errors import ModelError

SENTINEL = "Xq7sentinel7qX"


@dataclass(frozen=True)
class ChatOpening:
    """The text up to the user's words, and what ends them."""

    text: str
    end_text: str  # the visible beginning of what follows the user's words
    end_ids: frozenset[int]  # tokens that end the turn


def find_opening(tokenizer: Tokenizer) -> ChatOpening | None:
    """The opening of a user turn; None for a model without a chat template."""
    if not tokenizer.chat_template.exists:
        return None
    rendered = tokenizer.chat_template.render([{"role": "user", "content": SENTINEL}])
    before, found, after = rendered.rpartition(SENTINEL)
    if not found:
        raise ModelError("the chat template does not contain the user's words")
    closing = tokenizer.encode(after, add_special_tokens=False)
    special = [i for i in closing[:1] if i in tokenizer.special_ids]
    words = after.split()
    end_text = "" if special or not words else words[0]
    return ChatOpening(before, end_text, frozenset(special) | tokenizer.eos_token_ids)


def opening_ids(tokenizer: Tokenizer, opening: ChatOpening, words: str) -> list[int]:
    """Token ids up to where the target goes on as the user, who has said ``words`` already."""
    return tokenizer.encode(opening.text + words, add_special_tokens=False)


def user_turn(
    tokenizer: Tokenizer, opening: ChatOpening, words: str, ids: Sequence[int]
) -> str | None:
    """The turn that the target wrote; None when nothing usable came.

    A turn that was not ended is cut at its last sentence, or at its last word.
    """
    ends = [i for i, token in enumerate(ids) if token in opening.end_ids]
    text = words + tokenizer.decode(ids[: ends[0]] if ends else ids)
    ended = bool(ends)
    if opening.end_text and opening.end_text in text:
        text, ended = text.split(opening.end_text)[0], True
    if not ended:
        cut = max(text.rfind(mark) for mark in (". ", "? ", "! ", "\n"))
        text = text[: cut + 1] if cut > len(words) else text.rsplit(" ", 1)[0]
    text = text.strip()
    return text if any(c.isalnum() for c in text) else None


def bare_opening(tokenizer: Tokenizer, vocab_size: int, rng: random.Random) -> list[int]:
    """What a model without a chat template goes on from: BOS, or a random ordinary token."""
    first = tokenizer.encode("")
    while not first:
        token = rng.randrange(vocab_size)
        if token not in tokenizer.special_ids and tokenizer.token(token) is not None:
            first = [token]
    return first


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of a prompt; without a chat template its turns are joined as plain text."""
    if tokenizer.chat_template.exists:
        return tokenizer.encode_chat([m._asdict() for m in prompt.messages])
    return tokenizer.encode("\n\n".join(m.content for m in prompt.messages))


def draw_words(rng: random.Random) -> str:
    """The first words of a user turn, often none."""
    return rng.choice(templates.OPENINGS)
