"""The grammar of a session, on a target or a draft replica: compiled before the session opens.

Called by both workers on the caller's thread, so that the engine thread never compiles.
"""

from __future__ import annotations

from specdist.errors import InvalidRequestError
from specdist.grammar import GrammarError, Grammars, TokenConstraint
from specdist.protocol.request import SessionRequest

PARAM = "structured_outputs"


def constraint_for(request: SessionRequest, grammars: Grammars | None) -> TokenConstraint | None:
    """The constraint at the beginning of the answer; None: the request has no structure.

    Raises InvalidRequestError when the spec cannot be used here.
    """
    spec = request.sampling.structured_output
    if spec is None:
        return None
    if grammars is None:
        raise InvalidRequestError(
            f"{PARAM} is not supported: this replica was built without a vocabulary", param=PARAM
        )
    try:
        return grammars.constraint(spec)
    except GrammarError as error:
        raise InvalidRequestError(f"{PARAM} cannot be used: {error}", param=PARAM) from None
