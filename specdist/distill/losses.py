"""What a student is trained to make small, position by position.

p is the target's law and q the student's, both over the student's outputs at temperature 1:

- ``forward_kl``: KL(p || q), covers all that the target may say;
- ``reverse_kl``: KL(q || p), keeps to what the target is sure of;
- ``tv``: the total variation, 1 - sum of min(p, q): the chance of a rejection itself;
- ``mix``: forward KL at the begin, going over to total variation in the course of training,
  since the total variation teaches little while the two laws are far apart.

Pure functions of logits. Called by ``train``, ``agreement`` and ``estimate``.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def loss_rows(name: str, student: Tensor, teacher: Tensor, progress: float) -> Tensor:
    """The loss of every position.  # logits [positions, outputs] twice -> [positions]

    ``progress``: how much of the training is done, 0 to 1.
    """
    log_q, log_p = student.float().log_softmax(dim=-1), teacher.float().log_softmax(dim=-1)
    if name == "forward_kl":
        return _divergence(log_q, log_p)
    if name == "reverse_kl":
        return _divergence(log_p, log_q)
    variation = 0.5 * (log_q.exp() - log_p.exp()).abs().sum(dim=-1)
    if name == "tv":
        return variation
    if name == "mix":
        return (1 - progress) * _divergence(log_q, log_p) + progress * variation
    raise ValueError(f"unknown loss {name!r}")


def _divergence(log_of: Tensor, log_from: Tensor) -> Tensor:
    """KL(from || of)."""
    return F.kl_div(log_of, log_from, log_target=True, reduction="none").sum(dim=-1)
