"""How close a draft is to the target where the target has been: at its own answers.

Both engines read the same prompt and answer (teacher forcing) and their logits are compared
at every position that decides an answer token, a few rows at a time. Definitions, p the
target's law at such a position, q the draft's:

- ``hit[k]``: the target's likeliest token is among the draft's k likeliest;
- ``overlap[t]``: 1 - TV(p, q) = sum of min(p, q) with both laws at temperature t and the given
  top_p; at temperature 0 the laws are one token each, so it equals ``hit[1]``;
- ``covered``: the mass of p at temperature 1 inside the draft's output vocabulary.

Knows no trees and no workers. Called by ``eval_runs`` and ``eval_acceptance``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdist.engine.engine import Engine
from specdist.engine.sequence import chain_rows
from specdist.errors import InternalError, ModelError
from specdist.protocol.request import SamplingParams
from specdist.speculation.sampling import SamplingState, log_probs

HIT_SIZES = (1, 2, 4, 8)
ROWS = 32  # positions whose logits are in memory at the same time
SESSION = "specdist-agreement"


@dataclass(frozen=True)
class Answered:
    """A prompt with the target's answer."""

    name: str
    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """Means over ``num_positions`` positions."""

    num_positions: int
    hit: dict[int, float]
    overlap: dict[float, float]
    covered: float


class AgreementSums:
    """Adds up positions; one for each category."""

    def __init__(self, temperatures: Sequence[float], top_p: float) -> None:
        self._temperatures = tuple(temperatures)
        self._laws = [
            SamplingState(SamplingParams(temperature=t, top_p=top_p)) for t in temperatures
        ]
        self._sums = torch.zeros(len(HIT_SIZES) + len(self._laws) + 1, dtype=torch.float64)
        self._num_positions = 0

    def add(self, target: Tensor, draft: Tensor) -> None:
        """Logits of the same positions, [rows, vocab] each; -inf where a model has no output."""
        overlaps = [
            torch.minimum(log_probs(target, law).exp(), log_probs(draft, law).exp()).sum()
            for law in self._laws
        ]
        covered = target.softmax(dim=-1)[draft > -torch.inf].sum()
        sums = [*_hits(target, draft), *overlaps, covered]
        self._sums += torch.stack([s.double().cpu() for s in sums])
        self._num_positions += len(target)

    def merge(self, other: AgreementSums) -> None:
        """Take in the positions of another category."""
        self._sums += other._sums
        self._num_positions += other._num_positions

    def means(self) -> Agreement:
        """Shares of all positions."""
        values = (self._sums / max(self._num_positions, 1)).tolist()
        hits, overlaps = values[: len(HIT_SIZES)], values[len(HIT_SIZES) : -1]
        return Agreement(
            num_positions=self._num_positions,
            hit=dict(zip(HIT_SIZES, hits, strict=True)),
            overlap=dict(zip(self._temperatures, overlaps, strict=True)),
            covered=values[-1],
        )


def _hits(target: Tensor, draft: Tensor) -> list[Tensor]:
    wanted = target.argmax(dim=-1, keepdim=True)
    best = draft.topk(min(max(HIT_SIZES), draft.shape[1]), dim=-1)
    found = (best.indices == wanted) & (best.values > -torch.inf)
    return [found[:, :k].sum() for k in HIT_SIZES]


def add_answer(target: Engine, draft: Engine, answered: Answered, sums: AgreementSums) -> None:
    """Read one answer with both engines; positions beyond the draft's context are left out."""
    tokens = (*answered.prompt, *answered.answer)[: draft.max_model_len]
    start = len(answered.prompt)
    if len(tokens) <= start:
        return
    try:
        for ours, theirs in zip(
            answer_logits(target, tokens, start), answer_logits(draft, tokens, start), strict=True
        ):
            sums.add(ours, theirs)
    except FloatingPointError as error:
        raise ModelError(f"no agreement at {answered.name}: {error}") from error


def answer_logits(engine: Engine, tokens: Sequence[int], start: int) -> Iterator[Tensor]:
    """Logits of the positions that decide tokens ``start``, ``start + 1``, ... to the last.

    Yields [at most ROWS, vocab] at a time, equally cut for every engine.
    """
    sequence = engine.open(SESSION, tokens[:-1] if len(tokens) > 1 else tokens)
    try:
        size = engine.config.max_prefill_chunk
        first = start - 1  # this position decides token ``start``
        chunks = [(b, min(b + size, first), False) for b in range(0, first, size)]
        last = len(tokens) - 1
        chunks += [(b, min(b + ROWS, last), True) for b in range(first, last, ROWS)]
        for begin, end, is_wanted in chunks:
            if not engine.reserve(sequence, end - begin):
                raise InternalError(f"the KV cache is too small for {len(tokens)} tokens")
            wanted = range(end - begin) if is_wanted else ()
            (logits,) = engine.forward([chain_rows(sequence, tokens[begin:end], wanted)])
            engine.settle(sequence, range(end - begin))
            if is_wanted:
                yield logits
    finally:
        engine.close(SESSION)
