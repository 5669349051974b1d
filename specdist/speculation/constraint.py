"""What restricts an answer to a grammar's language: which tokens may follow which path.

The interface only, without torch: ``specdist.grammar`` implements it, ``masking`` applies it
to laws. Called by the drafters and the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

AllowedTokens = npt.NDArray[np.bool_]  # [vocabulary]: True where a token may come next


class ConstraintError(Exception):
    """The grammar cannot say any more what may follow (it has become too complex)."""


class Constraint(Protocol):
    """What one answer has to match, standing behind its committed tokens."""

    def commit(self, tokens: Iterable[int]) -> None:
        """Move behind tokens that were decided; never raises."""

    def allowed(self, path: Sequence[int]) -> AllowedTokens | None:
        """What may follow ``path``, which begins behind the committed tokens.

        End-of-sequence tokens are among it exactly where the grammar may end. None where the
        grammar does not admit the path itself. Not to be written to. Raises ConstraintError.
        """


def only_token(allowed: AllowedTokens) -> int | None:
    """The one token that may come next; None if there are several."""
    return int(allowed.argmax()) if np.count_nonzero(allowed) == 1 else None


def num_admitted(constraint: Constraint, tokens: Sequence[int]) -> int:
    """How many of ``tokens``, from the first on, may follow the committed ones."""
    for i, token in enumerate(tokens):
        allowed = constraint.allowed(tokens[:i])
        if allowed is None or token >= len(allowed) or not allowed[token]:
            return i
    return len(tokens)
