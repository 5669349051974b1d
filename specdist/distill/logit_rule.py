"""How a model makes logits of its last hidden state, besides the product with its head.

Gemma caps them, Cohere and Granite scale them. Found by the config's names and proved on a
probe, so that another family is refused and not taught wrongly. Used by ``teacher`` and
``student``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdist.errors import ModelError

PROBE_LEN = 8


@dataclass(frozen=True)
class LogitRule:
    """Scale, then soft cap."""

    scale: float = 1.0
    softcap: float | None = None

    def apply(self, products: Tensor) -> Tensor:
        """Logits out of products of states and head rows."""
        logits = products if self.scale == 1.0 else products * self.scale
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap


def rule_of(config: Any) -> LogitRule:
    """What the config says."""
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    if divisor := getattr(config, "logits_scaling", None):
        scale /= float(divisor)
    return LogitRule(scale, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def check_rule(model: Any, rule: LogitRule) -> None:
    """Raise ModelError unless the rule gives the model's own logits."""
    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[(7 + 31 * i) % rows for i in range(PROBE_LEN)]], device=model.device)
    wanted = model(input_ids=ids, use_cache=False).logits.float()
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    got = rule.apply(model.get_output_embeddings()(states).float())
    error = float((got - wanted).norm() / wanted.norm())
    if not error < 0.05:
        raise ModelError(
            f"{type(model).__name__} makes its logits in a way that is not known here "
            f"(relative difference {error:.2g}): its family cannot be distilled yet"
        )
