"""typical: keep a drafted token that the target finds plausible enough. LOSSY.

A child x is kept when p(x) > min(epsilon, delta * exp(-entropy of p)); the longest kept
path wins, the first one among equals. The output does not follow the target's law (Cai
et al., "Medusa", 2401.10774): a deployment must allow it and answers say so. The next
token is the target's own Gumbel-max sample. Temperature 0 keeps only the argmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specdist.speculation.noise import Noise
from specdist.speculation.rules.base import DraftRows, Verification, check_rows_fit
from specdist.speculation.selection import gumbel_argmax
from specdist.speculation.tree import ROOT, Tree


def verify(
    tree: Tree,
    log_probs: Tensor,
    draft_rows: DraftRows | None,
    noise: Noise,
    position: int,
    *,
    epsilon: float = 0.3,
    delta: float = 0.09,
) -> Verification:
    """See ``base.Verify`` for shapes."""
    check_rows_fit(tree, log_probs)
    best = ROOT
    kept = {ROOT}
    floors: dict[int, float] = {}
    for node, parent in enumerate(tree.parents):
        if parent not in kept:
            continue
        if parent not in floors:
            floors[parent] = min(epsilon, delta * math.exp(-entropy(log_probs[parent + 1])))
        if math.exp(float(log_probs[parent + 1, tree.tokens[node]])) > floors[parent]:
            kept.add(node)
            if best == ROOT or tree.depths[node] > tree.depths[best]:
                best = node
    path = tree.path(best)
    return Verification(path, gumbel_argmax(log_probs[best + 1], noise, position + len(path)))


def entropy(row: Tensor) -> float:
    """Entropy in nats of one row of log probabilities."""
    value = -float((row.exp() * row).nan_to_num(nan=0.0).sum())  # 0 * -inf counts as 0
    if bool(torch.isnan(row).any()):
        raise FloatingPointError("a row of the target's law holds NaN")
    return value
