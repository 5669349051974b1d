"""Batches with the student's own tokens: prefixes of answers, extended by what it would say.

There the student meets its own mistakes, as it does when it drafts several tokens. The
prefixes and the draws are functions of (seed, step). Called by ``train``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdist.distill.answering import draw
from specdist.distill.dataset import Item
from specdist.distill.student import Student


def extend(
    student: Student, items: Sequence[Item], num_tokens: int, rng: np.random.Generator
) -> list[Item]:
    """The items with random prefixes of their answers, each followed by own tokens."""
    prefixes = []
    for item in items:
        start, size = item.example.answer_start, len(item.example.tokens)
        last = min(size, student.max_len - num_tokens)
        prefixes.append(item.example.tokens[: int(rng.integers(start, max(start + 1, last)))])
    own = sample(student, prefixes, num_tokens, rng)
    return [
        item._replace(example=item.example._replace(tokens=np.concatenate([prefix, row])))
        for item, prefix, row in zip(items, prefixes, own, strict=True)
    ]


@torch.no_grad()
def sample(
    student: Student, prefixes: Sequence[np.ndarray], num_tokens: int, rng: np.random.Generator
) -> np.ndarray:
    """Tokens drawn from the student behind each prefix.  # int64 [prefixes, num_tokens]"""
    device = next(student.parameters()).device
    longest = max(len(p) for p in prefixes)
    padding = np.array([longest - len(p) for p in prefixes])
    inputs = np.stack([np.pad(p, (n, 0)) for p, n in zip(prefixes, padding, strict=True)])
    step = torch.from_numpy(inputs).to(device)
    pads = torch.from_numpy(padding).to(device)[:, None]
    cache = None
    drawn: list[Tensor] = []
    for number in range(num_tokens):
        columns = torch.arange(longest + number, device=device)[None]
        mask = (columns >= pads).long()
        positions = (columns[:, -step.shape[1] :] - pads).clamp_min(0)
        output = student.model.base_model(
            input_ids=step,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
        )
        cache = output.cache
        logits = student.logits(output.last_hidden_state[:, -1])
        rows = draw(logits, [1.0] * len(prefixes), rng.random(len(prefixes)).tolist())
        ids = student.output_token_ids
        step = (rows if ids is None else ids.to(device)[rows])[:, None]
        drawn.append(step)
    return torch.cat(drawn, dim=1).cpu().numpy()
