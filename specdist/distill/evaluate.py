"""How close a student is to the target, on held-out answers of the target.

Definitions, per position that decides an answer token, p the target's law at temperature 1 over
the whole vocabulary, q the student's, zero outside its outputs:

- ``top1``: the student's most likely token is the target's most likely one (greedy acceptance of
  a one-token draft);
- ``overlap``: 1 - TV(p, q) = sum of min(p, q) (acceptance under rejection sampling);
- ``hit[k]``: the target's most likely token is among the student's k most likely;
- ``covered``: the mass of p inside the student's outputs (an upper bound of ``overlap``).

Knows nothing of training. Called by ``specdist.distill.short``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdist.distill.data import Example, collate
from specdist.distill.student import Student

HIT_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Agreement:
    """Means over ``num_positions`` positions."""

    num_positions: int
    top1: float
    overlap: float
    covered: float
    hit: Mapping[int, float]

    def __str__(self) -> str:
        hits = " / ".join(f"{self.hit[k]:.3f}" for k in HIT_SIZES)
        return (
            f"top-1 {self.top1:.3f}, 1-TV {self.overlap:.3f}, covered {self.covered:.3f}, "
            f"among {' / '.join(map(str, HIT_SIZES))}: {hits} ({self.num_positions} positions)"
        )


@torch.inference_mode()
def evaluate(
    student: Student, teacher_head: Tensor, examples: Sequence[Example]
) -> dict[str, Agreement]:
    """Agreement over all examples ("all"), per kind of prompt, and for greedy ones ("greedy")."""
    student.eval()
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(4 + len(HIT_SIZES)).double())
    for example in examples:
        row = _sums(student, teacher_head, example)
        names = ["all", example.kind] + (["greedy"] if example.temperature == 0 else [])
        for name in names:
            sums[name] += row
    return {name: _agreement(row) for name, row in sorted(sums.items())}


def _sums(student: Student, teacher_head: Tensor, example: Example) -> Tensor:
    """Sums over one example: positions, top-1, overlap, covered mass, hits."""
    batch = collate([example], prompt_weight=0.0, prefix_len=0)
    used = batch.weights > 0
    ids = student.output_token_ids
    q = student.lm_head(student(batch.inputs)[used]).softmax(dim=-1)
    p = (batch.hidden[used] @ teacher_head.T).softmax(dim=-1)
    inside = p[:, ids]
    wanted = p.argmax(dim=-1, keepdim=True)
    hits = ids[q.topk(max(HIT_SIZES), dim=-1).indices] == wanted
    counts = [hits[:, :k].sum() for k in HIT_SIZES]
    overlap = torch.minimum(inside, q).sum()
    return torch.stack([used.sum(), counts[0], overlap, inside.sum(), *counts]).double()


def _agreement(sums: Tensor) -> Agreement:
    num_positions = int(sums[0])
    top1, overlap, covered, *hits = (sums[1:] / max(1, num_positions)).tolist()
    return Agreement(num_positions, top1, overlap, covered, dict(zip(HIT_SIZES, hits, strict=True)))
