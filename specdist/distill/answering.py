"""The target answers: many prompts in one engine, plain decoding, each with its own seed.

Continuous batching over ``specdist.engine``: every step advances all open answers by a
token, prompts come in chunk by chunk. A sampled token is drawn by inverting the law's
distribution function at a number that depends on (seed, position) alone, so an answer does
not depend on what else is in the batch (but for floating-point ties). The hidden states
behind the logits come for free and are kept on wish. Knows no prompts' text and no files;
called by ``answers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdist.engine.engine import Engine
from specdist.engine.loader import LoadedModel
from specdist.engine.scheduler import Plan, Scheduler
from specdist.engine.sequence import Rows, chain_rows
from specdist.engine.sequence import Sequence as EngineSequence
from specdist.errors import ConfigError
from specdist.speculation.noise import NEXT, Noise


@dataclass(frozen=True)
class Ask:
    """One thing to be continued by the target; temperature 0 is greedy."""

    name: str
    tokens: Sequence[int]
    temperature: float
    max_new_tokens: int
    seed: int
    stop_ids: frozenset[int] = frozenset()  # beside the model's own


@dataclass(frozen=True)
class Reply:
    """What the target said; ``hidden`` row i belongs to token ``len(tokens) - 1 - rows + i``."""

    name: str
    tokens: list[int]  # with what was asked
    num_new: int
    ended: bool  # by an end token, which is the last one
    hidden: Tensor | None  # [rows, width]: the states of the last tokens but one; see above


@dataclass
class _Open:
    ask: Ask
    sequence: EngineSequence
    noise: Noise
    stop_ids: frozenset[int]
    hidden: list[Tensor] = field(default_factory=list)

    @property
    def num_new(self) -> int:
        return len(self.sequence.tokens) - len(self.ask.tokens)


class Answering:
    """The open answers of one engine."""

    def __init__(self, engine: Engine, loaded: LoadedModel, keep_hidden: bool) -> None:
        self.engine = engine
        self._scheduler = Scheduler(engine, engine.config)
        self._open: dict[str, _Open] = {}
        self._states: Tensor | None = None
        if keep_hidden:
            loaded.model.base_model.register_forward_hook(self._catch)

    def _catch(self, module: object, inputs: object, output: Any) -> None:
        states = output.last_hidden_state[0]
        self._states = states.half() if states.dtype == torch.float32 else states

    @property
    def num_open(self) -> int:
        """Answers that are not complete."""
        return len(self._open)

    @property
    def is_prefilling(self) -> bool:
        """Whether prompts are still being computed."""
        return any(one.sequence.num_uncomputed > 1 for one in self._open.values())

    def num_new(self, name: str) -> int:
        """Tokens so far of an answer that is not complete."""
        return self._open[name].num_new

    def open(self, ask: Ask) -> None:
        """Take up a prompt."""
        sequence = self.engine.open(ask.name, ask.tokens)
        self._scheduler.add(sequence)
        stops = ask.stop_ids | self.engine.eos_token_ids
        self._open[ask.name] = _Open(ask, sequence, Noise(ask.seed), stops)

    def step(self) -> list[Reply]:
        """One forward pass; returns the answers that it completed."""
        plan = self._scheduler.plan({})
        for sequence in plan.exhausted:
            raise ConfigError(
                f"the KV cache of {self.engine.num_blocks} blocks is too small for an answer "
                f"of {len(sequence.tokens)} tokens: lower batch_size or max_prompt_tokens"
            )
        for sequence in plan.preempted:
            self._open[sequence.session_id].hidden.clear()  # all rows are computed again
        items = _items(plan)
        if not items:
            return []
        logits = self.engine.forward(items)
        self._keep_states(items)
        chosen = self._choose(items, logits)
        for item in items:
            item.seq.tokens += chosen.get(item.seq.session_id, [])
            self.engine.settle(item.seq, range(len(item.tokens)))
        return [reply for name in chosen if (reply := self._completed(name)) is not None]

    def _keep_states(self, items: Sequence[Rows]) -> None:
        if self._states is None:
            return
        states = self._states.cpu()
        for item, rows in zip(items, states.split([len(i.tokens) for i in items]), strict=True):
            self._open[item.seq.session_id].hidden.append(rows.clone())
        self._states = None

    def _choose(self, items: Sequence[Rows], logits: Sequence[Tensor]) -> dict[str, list[int]]:
        """The next token of every sequence whose last row was computed."""
        deciding = [(i.seq, row) for i, row in zip(items, logits, strict=True) if len(row)]
        if not deciding:
            return {}
        opened = [self._open[sequence.session_id] for sequence, _ in deciding]
        rows = torch.cat([row for _, row in deciding])
        tokens = rows.argmax(dim=-1)
        warm = [i for i, one in enumerate(opened) if one.ask.temperature > 0]
        if warm:
            temperatures = [opened[i].ask.temperature for i in warm]
            points = [opened[i].noise.uniform(len(opened[i].sequence.tokens), NEXT) for i in warm]
            tokens[warm] = draw(rows[warm], temperatures, points)
        pairs = zip(opened, tokens.tolist(), strict=True)
        return {one.ask.name: [token] for one, token in pairs}

    def _completed(self, name: str) -> Reply | None:
        one = self._open[name]
        tokens = one.sequence.tokens
        ended = tokens[-1] in one.stop_ids
        room = self.engine.max_model_len - len(tokens)
        if not ended and one.num_new < one.ask.max_new_tokens and room > 0:
            return None
        del self._open[name]
        self._scheduler.remove(name)
        self.engine.close(name)
        hidden = torch.cat(one.hidden) if one.hidden else None
        return Reply(name, list(tokens), one.num_new, ended, hidden)


def _items(plan: Plan) -> list[Rows]:
    items = []
    for sequence, num_tokens in plan.prefills:
        begin = sequence.num_computed
        tokens = sequence.tokens[begin : begin + num_tokens]
        is_last = begin + num_tokens == len(sequence.tokens)
        items.append(chain_rows(sequence, tokens, [num_tokens - 1] if is_last else []))
    items += [chain_rows(sequence, sequence.tokens[-1:], [0]) for sequence, _ in plan.decodes]
    return items


def draw(logits: Tensor, temperatures: Sequence[float], points: Sequence[float]) -> Tensor:
    """The token in whose part of the distribution function each point of [0, 1) lies.

    logits: [rows, vocab] -> int64 [rows]
    """
    scale = torch.tensor(temperatures, device=logits.device)[:, None]
    cumulative = (logits.float() / scale).softmax(dim=-1).double().cumsum(dim=-1)
    wanted = torch.tensor(points, dtype=torch.float64, device=logits.device)[:, None]
    # The first token whose sum exceeds the point has a probability above 0.
    found = torch.searchsorted(cumulative, wanted * cumulative[:, -1:], right=True)[:, 0]
    return found.clamp_max(logits.shape[1] - 1)
