"""Verification rules: one pure module each, listed in ``registry``."""

from specdist.speculation.rules.base import Verification
from specdist.speculation.rules.registry import RULES, RuleInfo, get_rule

__all__ = ["RULES", "RuleInfo", "Verification", "get_rule"]
