"""Fills a folder with shards: draws prompts, lets the target answer, until time is up.

Joins prompts, tokenizer and target; knows nothing of students. A pool of batches has its
own seed, so a run that was stopped goes on with the next pool. Called by
``specdist.distill.short``.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdist.distill.data import Example, write_shard
from specdist.distill.generate import Answered, Job, answer_batch
from specdist.distill.prompts import Corpora, Message, Prompt, draw_prompts, follow_up

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectConfig:
    """How much is generated, and how."""

    seed: int = 0
    batch_size: int = 64
    pool_batches: int = 3  # drawn together, so that batches hold prompts of like length
    max_new_tokens: int = 160
    max_prompt_tokens: int = 300
    max_user_turn_tokens: int = 64
    greedy_share: float = 0.4
    follow_up_share: float = 0.2  # of each pool, made from the answers of the one before
    minutes: float = 25.0


class Collector:
    """The target with its tokenizer, answering prompts in batches."""

    def __init__(
        self,
        target: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpora: Corpora,
        config: CollectConfig,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.corpora = corpora
        self.config = config
        self.eos: int = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._answered: list[tuple[Prompt, str]] = []

    def run(self, folder: Path) -> None:
        """Write shards until ``config.minutes`` have passed; shards already there are kept."""
        folder.mkdir(parents=True, exist_ok=True)
        number = next_pool(folder)
        started, num_tokens = time.monotonic(), 0
        while True:
            rng = random.Random(self.config.seed * 100_003 + number)
            for part, examples in enumerate(self.collect_pool(rng)):
                write_shard(folder / f"shard-{number:04d}-{part}.safetensors", examples)
                num_tokens += sum(len(e.tokens) - e.answer_start for e in examples)
                elapsed = time.monotonic() - started
                log.info("pool %d.%d: %d answer tokens, %.0f s", number, part, num_tokens, elapsed)
                if elapsed >= self.config.minutes * 60:
                    return
            number += 1

    def collect_pool(self, rng: random.Random) -> Iterator[list[Example]]:
        """Draw a pool of prompts, and answer it batch by batch, like lengths together."""
        generator = torch.Generator().manual_seed(rng.getrandbits(32))
        pool = [(p, self._encode(p)) for p in self._draw(rng, generator)]
        pool = [(p, ids) for p, ids in pool if len(ids) <= self.config.max_prompt_tokens]
        pool.sort(key=lambda item: len(item[1]))
        size = self.config.batch_size
        batches = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(batches)
        self._answered = []
        for batch in batches:
            yield self._answer_prompts(batch, rng, generator)

    def _answer_prompts(
        self,
        prompts: Sequence[tuple[Prompt, list[int]]],
        rng: random.Random,
        generator: torch.Generator,
    ) -> list[Example]:
        jobs = [Job(ids, self._temperature(rng)) for _, ids in prompts]
        results = self._answer(jobs, self.config.max_new_tokens, generator)
        texts = [self.tokenizer.decode(self._answer_ids(r)) for r in results]
        self._answered += [(p, t) for (p, _), t in zip(prompts, texts, strict=True) if t.strip()]
        rows = zip(prompts, jobs, results, strict=True)
        return [_example(prompt, job, result) for (prompt, _), job, result in rows]

    def _draw(self, rng: random.Random, generator: torch.Generator) -> list[Prompt]:
        size = self.config.batch_size * self.config.pool_batches
        num_next = min(int(size * self.config.follow_up_share), len(self._answered))
        before = rng.sample(self._answered, num_next)
        fresh = draw_prompts(self.corpora, rng, size - num_next)
        own = self._write_user_turns([p for p in fresh if p.kind == "self"], generator)
        given = [p for p in fresh if p.kind != "self"]
        return [follow_up(p, text, rng) for p, text in before] + own + given

    def _write_user_turns(
        self, openings: Sequence[Prompt], generator: torch.Generator
    ) -> list[Prompt]:
        """Let the target complete the opening of a user turn; turns it does not end are dropped."""
        if not openings:
            return []
        jobs = [Job(self._encode_open_turn(p), temperature=1.0) for p in openings]
        results = self._answer(jobs, self.config.max_user_turn_tokens, generator)
        turns = []
        for opening, result in zip(openings, results, strict=True):
            text = opening.messages[-1].content + self.tokenizer.decode(self._answer_ids(result))
            if result.finished and text.strip():
                turns.append(Prompt("self", (Message("user", text.strip()),)))
        return turns

    def _answer(
        self, jobs: Sequence[Job], max_new_tokens: int, generator: torch.Generator
    ) -> list[Answered]:
        return answer_batch(self.target, jobs, max_new_tokens, self.eos, generator)

    def _answer_ids(self, result: Answered) -> list[int]:
        end = len(result.tokens) - int(result.finished)
        return result.tokens[result.answer_start : end].tolist()

    def _temperature(self, rng: random.Random) -> float:
        if rng.random() < self.config.greedy_share:
            return 0.0
        return rng.uniform(0.7, 1.0)

    def _encode(self, prompt: Prompt) -> list[int]:
        messages = [m._asdict() for m in prompt.messages]
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return list(encoded["input_ids"])

    def _encode_open_turn(self, prompt: Prompt) -> list[int]:
        messages = [m._asdict() for m in prompt.messages]
        ids = list(self.tokenizer.apply_chat_template(messages)["input_ids"])
        return ids[: len(ids) - 1 - ids[::-1].index(self.eos)]


def next_pool(folder: Path) -> int:
    """The number of the first pool that has no shard yet."""
    numbers = [int(path.name.split("-")[1]) for path in folder.glob("shard-*.safetensors")]
    return max(numbers, default=-1) + 1


def _example(prompt: Prompt, job: Job, result: Answered) -> Example:
    return Example(
        tokens=result.tokens.long(),
        hidden=result.hidden,
        answer_start=result.answer_start,
        temperature=job.temperature,
        kind=prompt.kind,
    )
