"""The target answers prompts: a small batched sampling loop that also keeps hidden states.

The target's last hidden state (after its final norm) is kept for every token: its logits, and
so the whole teacher distribution, are one matrix product away, and no teacher forward is
needed while the student trains. Knows nothing of prompts' origins or files. Called by
``specdist.distill.short``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True)
class Job:
    """One prompt to be answered; temperature 0 is greedy."""

    tokens: Sequence[int]
    temperature: float


@dataclass(frozen=True)
class Answered:
    """A prompt and the target's answer (with its end token, when it came to one)."""

    tokens: Tensor  # int32 [num_tokens], prompt then answer
    hidden: Tensor  # float16 [num_tokens - 1, width]; row i is what token i + 1 was decided from
    answer_start: int
    finished: bool


@dataclass
class _Row:
    """One row of the running batch."""

    index: int  # position in the list of jobs
    padding: int
    answer: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


@torch.inference_mode()
def answer_batch(
    target: PreTrainedModel,
    jobs: Sequence[Job],
    max_new_tokens: int,
    eos_token_id: int,
    generator: torch.Generator,
) -> list[Answered]:
    """Answer all jobs in one left-padded batch; rows that end leave the batch at once."""
    longest = max(len(job.tokens) for job in jobs)
    rows = [_Row(i, longest - len(job.tokens)) for i, job in enumerate(jobs)]
    pads = torch.tensor([row.padding for row in rows])
    step = torch.full((len(jobs), longest), eos_token_id)
    for row, job in zip(rows, jobs, strict=True):
        step[row.index, row.padding :] = torch.tensor(job.tokens)
    temperatures = torch.tensor([job.temperature for job in jobs])
    cache = DynamicCache(config=target.config)
    done: list[_Row] = []
    while rows:
        state = _advance(target, step, pads, cache)
        for row, hidden in zip(rows, state, strict=True):
            row.hidden.append(hidden[row.padding if not row.hidden else 0 :].half())
        chosen = sample(target.lm_head(state[:, -1]), temperatures, generator)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            row.answer.append(token)
        ended = [r.answer[-1] == eos_token_id or len(r.answer) == max_new_tokens for r in rows]
        done += [row for row, end in zip(rows, ended, strict=True) if end]
        keep = [i for i, end in enumerate(ended) if not end]
        rows, step = [rows[i] for i in keep], chosen[keep, None]
        if len(keep) < len(ended) and keep:
            pads, temperatures = pads[keep], temperatures[keep]
            cache.batch_select_indices(torch.tensor(keep))
    return [_collect(row, jobs[row.index], eos_token_id) for row in sorted(done, key=_index)]


def _index(row: _Row) -> int:
    return row.index


def _advance(target: PreTrainedModel, step: Tensor, pads: Tensor, cache: Any) -> Tensor:
    """Run the new columns; returns hidden states [batch, columns, width]."""
    start = cache.get_seq_length()
    columns = torch.arange(start + step.shape[1])
    mask = (columns >= pads[:, None]).long()
    positions = (columns[start:] - pads[:, None]).clamp_min(0)
    output = target.model(
        input_ids=step, attention_mask=mask, position_ids=positions, past_key_values=cache
    )
    return output.last_hidden_state


def sample(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row at the row's own temperature.  # [batch, vocab] -> [batch]"""
    greedy = logits.argmax(dim=-1)
    warm = temperatures > 0
    if not warm.any():
        return greedy
    probs = (logits[warm] / temperatures[warm, None]).softmax(dim=-1)
    greedy[warm] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return greedy


def _collect(row: _Row, job: Job, eos_token_id: int) -> Answered:
    return Answered(
        tokens=torch.tensor([*job.tokens, *row.answer], dtype=torch.int32),
        hidden=torch.cat(row.hidden),
        answer_start=len(job.tokens),
        finished=row.answer[-1] == eos_token_id,
    )
