"""How close a student is to the target, on held-out answers of the target.

Definitions, per position that decides an answer token; p is the target's law over the whole
vocabulary, q the student's, zero outside its outputs:

- ``loss``: the training loss, mix taken at its end;
- ``top[k]``: the target's most likely token is among the student's k most likely;
- ``overlap[t]``: 1 - TV(p, q) = sum of min(p, q), both at temperature t: the acceptance of
  a one-token draft under rejection sampling;
- ``covered``: the mass of p (temperature 1) inside the student's outputs.

For greedy answers also chains. The student's greedy chain from a position is accepted as
far as its tokens are the answer's own; up to the first miss it has read just the answer, so
one pass over the answer gives every chain exactly. ``depth[d]``: share of positions from
which at least d tokens are accepted; ``chain[k]``: mean acceptance length when the answer
is decoded with chains of k tokens, the next token included.

Called by ``train`` and ``training``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdist.distill.batches import pad
from specdist.distill.dataset import Item
from specdist.distill.losses import loss_rows
from specdist.distill.student import Student
from specdist.distill.teacher import Teacher

TOP_SIZES = (1, 2, 4, 8)
TEMPERATURES = (1.0, 0.7)
DEPTHS = tuple(range(1, 9))
CHAINS = (4, 5, 6, 7, 8)
BATCH_ANSWERS = 8
Figures = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """One held-out answer with what of the target's laws does not depend on the student."""

    item: Item
    states: Tensor  # [positions, width]
    wanted: Tensor  # int64 [positions]: the target's most likely token
    log_sums: Tensor  # [temperatures, positions]: logsumexp over the whole vocabulary


def prepare(teacher: Teacher, items: Sequence[Item]) -> list[Measured]:
    """Look at the target's full laws once."""
    measured = []
    for item, states in zip(items, teacher.states_of(items), strict=True):
        own = states[-item.example.num_answer_tokens :]
        logits = teacher.logits(own)
        sums = [(logits / t).logsumexp(dim=-1) for t in TEMPERATURES]
        measured.append(Measured(item, own, logits.argmax(dim=-1), torch.stack(sums)))
    return measured


@torch.no_grad()
def evaluate(
    student: Student, teacher: Teacher, held_out: Sequence[Measured], loss: str
) -> dict[str, Figures]:
    """Figures over all answers ("all"), the greedy ones ("greedy"), and each kind of prompt."""
    student.eval()
    sums: dict[str, Figures] = defaultdict(lambda: defaultdict(float))
    for first in range(0, len(held_out), BATCH_ANSWERS):
        group = held_out[first : first + BATCH_ANSWERS]
        inputs = pad([m.item.example.tokens[:-1] for m in group]).to(teacher.device)
        for one, states in zip(group, student.states(inputs), strict=True):
            begin = len(one.item.example.tokens) - 1 - len(one.states)
            own = states[begin : len(one.item.example.tokens) - 1]
            row = _sums(student, teacher, one, own, loss)
            example = one.item.example
            greedy = example.temperature == 0
            for name in ("all", example.kind, *(("greedy",) if greedy else ())):
                for key, value in row.items():
                    sums[name][key] += value
    student.train()
    return {name: _means(row) for name, row in sorted(sums.items())}


def _sums(student: Student, teacher: Teacher, one: Measured, states: Tensor, loss: str) -> Figures:
    """Sums over one answer's positions."""
    ids = student.output_token_ids
    mine, theirs = student.logits(states), teacher.logits(one.states, ids)
    best = mine.topk(min(max(TOP_SIZES), mine.shape[1]), dim=-1).indices
    tokens = best if ids is None else ids[best]
    hits = tokens == one.wanted[:, None]
    row: Figures = {"positions": float(len(hits))}
    row["loss"] = float(loss_rows(loss, mine, theirs, progress=1.0).sum())
    row["covered"] = float((theirs - one.log_sums[0][:, None]).exp().sum())
    for size in TOP_SIZES:
        row[f"top{size}"] = float(hits[:, :size].sum())
    for temperature, log_sum in zip(TEMPERATURES, one.log_sums, strict=True):
        p = (theirs / temperature - log_sum[:, None]).exp()
        q = (mine / temperature).softmax(dim=-1)
        row[f"overlap{temperature:g}"] = float(torch.minimum(p, q).sum())
    if one.item.example.temperature == 0:
        answer = torch.from_numpy(one.item.example.tokens[-len(hits) :]).to(tokens.device)
        row |= chain_sums((tokens[:, 0] == answer).cpu().numpy())
    return row


def chain_sums(accepted: np.ndarray) -> Figures:
    """Sums over the chains of one greedy answer.

    ``accepted``: whether the student's first choice is the answer's token.  # bool [positions]
    """
    runs = np.zeros(len(accepted) + 1, np.int64)
    for position in range(len(accepted) - 1, -1, -1):
        runs[position] = runs[position + 1] + 1 if accepted[position] else 0
    row: Figures = {"chain_positions": float(len(accepted))}
    for depth in DEPTHS:
        row[f"depth{depth}"] = float((runs[:-1] >= depth).sum())
    for length in CHAINS:
        position = steps = 0
        while position < len(accepted):
            position += min(int(runs[position]), length) + 1
            steps += 1
        row[f"steps{length}"] = float(steps)
    return row


def _means(sums: Figures) -> Figures:
    positions, chained = sums["positions"], sums.get("chain_positions", 0.0)
    means: Figures = {"positions": positions, "chain_positions": chained}
    for key, value in sums.items():
        if key.startswith("depth"):
            means[key] = value / chained
        elif key.startswith("steps"):
            means[f"chain{key[5:]}"] = chained / value
        elif key not in means:
            means[key] = value / positions
    return means


def describe(figures: Figures) -> str:
    """One line for the log."""
    tops = " / ".join(f"{figures[f'top{k}']:.3f}" for k in TOP_SIZES)
    text = f"loss {figures['loss']:.3f}, top 1/2/4/8 {tops}, 1-TV {figures['overlap1']:.3f}"
    return text + (f", chains of 5: {figures['chain5']:.2f}" if "chain5" in figures else "")


def kinds_of(figures: Iterable[str]) -> list[str]:
    """The kinds of prompt among the names of figures."""
    return [name for name in figures if name not in ("all", "greedy")]
