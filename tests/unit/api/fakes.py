"""A small tokenizer, a model folder and a scripted backend: what API tests run against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specdist.protocol.answer import SpeculationSummary, TokenDelta
from specdist.protocol.health import HealthReport
from specdist.protocol.request import GenerationRequest
from specdist.protocol.verdict import TokenLogprobs

EOS = 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = "the quick brown fox jumps over the lazy dog. one two three, ha ha ha 1, 2, 3, 4, 5, 6 "

CHAT_TEMPLATE = """{% if messages[0].role != 'system' %}<|im_start|>system
You are a test.<|im_end|>
{% endif %}
{% for message in messages %}
{% if message.role == 'tool' %}
{{ raise_exception('no tools here') }}
{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_level_core() -> tokenizers.Tokenizer:
    """Byte-level BPE as GPT-2's, over every byte and a few words."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([TEXT * 4], trainer)
    return core


def sentencepiece_core(decoder: decoders.Decoder | None = None) -> tokenizers.Tokenizer:
    """Llama style: blanks are "▁", unknown characters fall back to bytes."""
    words = ["▁", "▁leading", "▁x", "▁Paris", "a", "b", "▁a", "é", "▁▁"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    vocab = {name: i for i, name in enumerate(names)}
    core = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    core.decoder = decoder or decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(["<s>", "</s>"])
    return core


def write_model_folder(folder: Path) -> Path:
    """A folder with everything that the API reads of a model."""
    byte_level_core().save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        "generation_config.json": {"eos_token_id": EOS},
        "config.json": {"eos_token_id": 0},
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


Script = Callable[[GenerationRequest], Sequence[int]]


@dataclass
class ScriptedBackend:
    """Plays token ids in steps, obeying max_tokens and EOS as a target does.

    ``step_sizes`` repeats; a step of k tokens has k - 1 accepted ones of 4 candidates.
    """

    script: Sequence[int] | Script = ()
    step_sizes: Sequence[int] = (1,)
    pause_s: float = 0.0
    fail_after: int | None = None  # steps before ``failure``
    failure: Exception = field(default_factory=lambda: RuntimeError("target lost its mind"))
    obedient: bool = True
    endless: bool = False
    report: HealthReport = field(default_factory=lambda: HealthReport(True, "", 1, 1))
    requests: list[GenerationRequest] = field(default_factory=list)
    num_closed: int = 0
    num_open: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        self.num_open += 1
        try:
            for number, delta in enumerate(self._deltas(request)):
                if self.fail_after == number:
                    raise self.failure
                await asyncio.sleep(self.pause_s)
                yield delta
        finally:
            self.num_open -= 1
            self.num_closed += 1
            self.closed.set()

    async def health(self) -> HealthReport:
        return self.report

    async def metrics_text(self) -> str:
        return (
            "# TYPE specdist_generation_tokens_total counter\nspecdist_generation_tokens_total 3\n"
        )

    def _deltas(self, request: GenerationRequest):
        ids = list(self.script(request) if callable(self.script) else self.script)
        limit = request.sampling.max_tokens
        reason = None
        if self.obedient:
            ends = [i for i, t in enumerate(ids) if t == EOS and not request.sampling.ignore_eos]
            if ends and ends[0] < limit:
                ids, reason = ids[: ends[0] + 1], "stop"
            elif len(ids) >= limit:
                ids, reason = ids[:limit], "length"
        yield from self._steps(request, ids, reason)

    def _steps(self, request: GenerationRequest, ids: list[int], reason: str | None):
        counts = SpeculationSummary()
        histogram = [0] * max(self.step_sizes)
        at, number = 0, 0
        while at < len(ids) or (self.endless and ids):
            size = self.step_sizes[number % len(self.step_sizes)]
            tokens = ids[at : at + size] if not self.endless else ids[:size]
            at, number = at + size, number + 1
            histogram[len(tokens) - 1] += 1
            counts = SpeculationSummary(
                num_spec_steps=number,
                num_steps=number,
                num_draft_tokens=4 * number,
                num_accepted_tokens=counts.num_accepted_tokens + len(tokens) - 1,
                num_generated_tokens=counts.num_generated_tokens + len(tokens),
                acceptance_histogram=tuple(histogram),
                num_stale_trees=1,
            )
            yield TokenDelta(
                token_ids=tuple(tokens),
                num_accepted=len(tokens) - 1,
                num_draft_tokens=4,
                logprobs=tuple(entry(t, request.num_logprobs) for t in tokens)
                if request.num_logprobs is not None
                else (),
                finish_reason=reason if at >= len(ids) and not self.endless else None,
                seed=77 if request.sampling.seed is None else request.sampling.seed,
                num_cached_tokens=3 if number == 1 else 0,
                summary=counts,
            )


def entry(token_id: int, num_top: int) -> TokenLogprobs:
    """A log probability that tells tokens apart, and alternatives that tell positions apart."""
    top = [(token_id, -0.001 * token_id)]
    top += [((token_id + i) % 259 + 3, -1.0 - i) for i in range(1, num_top)]
    return TokenLogprobs(token_id, -0.001 * token_id, tuple(top[:num_top]))
