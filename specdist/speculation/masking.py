"""A law cut to what a grammar allows: logits in, logits out, one row for each path of a tree.

Knows no grammar but the interface ``constraint.Constraint``. Called by ``sampling`` for every
law, the target's and the draft's, and by the draft's ranking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdist.speculation.constraint import Constraint, only_token

NEG_INF = float("-inf")


def mask_rows(rows: Tensor, constraint: Constraint, paths: Sequence[Sequence[int]]) -> None:
    """Set what may not follow ``paths[i]`` to -inf in row i.  # rows: [n, vocab], written to

    A token that is the only one allowed is certain, whatever the model says of it: its entry
    becomes 0, so that a draft whose output vocabulary lacks it can propose it all the same.
    A row behind a path that the grammar does not admit is never reached and stays as it is.
    """
    forbidden = np.zeros(tuple(rows.shape), dtype=np.bool_)
    for i, path in enumerate(paths):
        allowed = constraint.allowed(path)
        if allowed is None:
            continue
        width = min(len(allowed), rows.shape[1])
        forbidden[i, width:] = True
        np.logical_not(allowed[:width], out=forbidden[i, :width])
        only = only_token(allowed)
        if only is not None and only < width:
            rows[i, only] = 0.0
    rows.masked_fill_(torch.from_numpy(forbidden).to(rows.device), NEG_INF)


def has_candidates(row: Tensor, constraint: Constraint, path: Sequence[int]) -> bool:
    """Whether a model whose logits after ``path`` are ``row`` can propose what may follow."""
    allowed = constraint.allowed(path)
    if allowed is None:
        return False
    if only_token(allowed) is not None:
        return True
    able = (row != NEG_INF).cpu().numpy()  # NaN counts: it is noticed later, and told
    width = min(len(able), len(allowed))
    return bool((able[:width] & allowed[:width]).any())
