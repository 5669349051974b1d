"""What an answer has to match: specs checked, compiled once, walked token by token.

Knows a vocabulary (token ids and their bytes), no model, no tree and no request. The grammar
library, llguidance, is imported here and nowhere else. Used by the workers and by the API.
"""

from specdist.grammar.errors import GrammarError
from specdist.grammar.grammars import Grammars
from specdist.grammar.token_constraint import TokenConstraint

__all__ = ["GrammarError", "Grammars", "TokenConstraint"]
