"""Where model folders come from: the demo pair, the hub, local files; and which pairs fit.

Knows no engine and no serving. Used by deployments, the command line and the tests.
"""

from specdist.models.pair import PairReport, check_pair
from specdist.models.resolve import resolve_model

__all__ = ["PairReport", "check_pair", "resolve_model"]
