"""One answer's place in its grammar: committed tokens, and the paths of a tree behind them.

``speculation.constraint.Constraint`` over the grammar library's matcher. Going from one path
to another takes back what differs and reads what is new, so that a whole tree costs one walk.
What may follow depends on the tokens alone, never on the paths tried before. For one thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import llguidance
import numpy as np

from specdist.speculation.constraint import AllowedTokens, ConstraintError

MAX_REASON_CHARS = 300
_PLACE = re.compile(r"^at \d+\(\d+\): ")  # where in its own notation: no place in the user's text


class TokenConstraint:
    """The grammar of one answer, standing behind its committed tokens."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        """``matcher``: at the beginning of the answer, and nobody else's."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._path: list[int] = []  # read behind the committed tokens
        self._known: dict[tuple[int, ...], AllowedTokens | None] = {}
        self._fault = ""

    def commit(self, tokens: Iterable[int]) -> None:
        """Move behind tokens that were decided; what goes wrong shows with the next question."""
        decided = [token for token in tokens if token not in self._eos_token_ids]
        if not self._go_to(tuple(decided)):  # the end itself is nothing to read
            self._fault = self._fault or "the answer so far does not match the grammar"
        self._path.clear()
        self._known.clear()

    def allowed(self, path: Sequence[int]) -> AllowedTokens | None:
        """What may follow ``path``; None where the grammar does not admit the path itself."""
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._tokens_after(key)
        return self._known[key]

    def _tokens_after(self, path: tuple[int, ...]) -> AllowedTokens | None:
        if path and path[-1] in self._eos_token_ids:
            before = self.allowed(path[:-1])
            ends = before is not None and bool(before[path[-1]])
            return self._only_the_end() if ends else None
        admitted = self._go_to(path)
        bits = self._matcher.compute_bitmask() if admitted and not self._fault else b""
        self._check_matcher()
        if self._fault:
            raise ConstraintError(self._fault)
        if not admitted:
            return None
        every = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        allowed = every[: self._vocab_size].view(np.bool_)
        allowed.flags.writeable = False
        return allowed

    def _only_the_end(self) -> AllowedTokens:
        allowed = np.zeros(self._vocab_size, dtype=np.bool_)
        allowed[list(self._eos_token_ids)] = True
        allowed.flags.writeable = False
        return allowed

    def _go_to(self, path: tuple[int, ...]) -> bool:
        """Read exactly ``path`` behind the committed tokens; False if it is not admitted."""
        if self._fault or not self._eos_token_ids.isdisjoint(path):
            return False  # nothing comes behind the end, and the end is never read
        if not all(0 <= token < self._vocab_size for token in path):
            return False  # the library would take it for a fault of its own, for good
        shared = 0
        for mine, wanted in zip(self._path, path, strict=False):
            if mine != wanted:
                break
            shared += 1
        if len(self._path) > shared:
            self._matcher.rollback(len(self._path) - shared)
            del self._path[shared:]
        new = list(path[shared:])
        num_read = self._matcher.try_consume_tokens(new) if new else 0
        self._path += new[:num_read]
        self._check_matcher()
        return num_read == len(new) and not self._fault

    def _check_matcher(self) -> None:
        if not self._fault and self._matcher.is_error():
            reason = first_line(self._matcher.get_error())
            self._fault = f"the grammar has become too complex: {reason}"


def first_line(error: object) -> str:
    """What a message of the library says, without its drawings and its own notation."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = _PLACE.sub("", told[0] if told else next(iter(lines), "no reason given"))
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 3] + "..."
