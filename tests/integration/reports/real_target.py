"""The demo target in one process: prompts as token ids, plain answers, text of verdicts.

Plain answers (speculation off) to all reference prompts are computed in one batch and kept;
every test compares with them. Used by the tests of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from specdist.api.answer import AnswerText, TextDelta
from specdist.api.model_card import ModelCard
from specdist.api.validation import PreparedRequest
from specdist.engine.loader import LoadedModel
from specdist.protocol.answer import TokenDelta
from specdist.protocol.request import GenerationRequest, SamplingParams
from specdist.speculation.stats import SpeculationStats
from tests.integration.reports.rigs import CHATS, GOLD, TEXTS
from tests.pair import Answer, Pair, request

NUM_PLAIN = 16


class RealTarget:
    """Loaded once per test session."""

    def __init__(self, loaded: LoadedModel, folder: Path) -> None:
        self.loaded, self.folder = loaded, folder
        self.card = ModelCard.load(folder, name="demo", max_model_len=8192)
        self.tokenizer = self.card.tokenizer
        self.prompts = {name: self.tokenizer.encode(text) for name, text in TEXTS.items()}
        for name, text in CHATS.items():
            self.prompts[name] = self.chat(text)

    def chat(self, *texts: str) -> list[int]:
        """Token ids of a conversation that begins with the user."""
        roles = ("user", "assistant")
        turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        return self.tokenizer.encode_chat(turns)

    def pair(self, draft: Any = None, **options: Any) -> Pair:
        """Both workers around the loaded target."""
        return Pair(self.loaded, draft, **options)

    @cached_property
    def plain(self) -> dict[str, Answer]:
        """Answers without speculation, with two alternatives for each token."""
        pair = self.pair()
        names = [*GOLD, "P-HI"]
        options = {"speculate": False, "num_logprobs": 3}
        answers = {}
        for name in names:
            limit = max(NUM_PLAIN, len(GOLD.get(name, ())) + 2)
            (answers[name],) = pair_open(pair, [self.prompts[name]], max_tokens=limit, **options)
        pair.run()
        return answers

    def off(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Plain answers to other prompts."""
        answers = self.pair().generate(prompts, speculate=False, **options)
        return [answer.tokens for answer in answers]

    def full(self, name: str) -> list[int]:
        """Prompt and plain answer."""
        return [*self.prompts[name], *self.plain[name].tokens]

    def shown(
        self, answer: Answer, *, stop: Sequence[str] = (), max_tokens: int, num_logprobs: int
    ) -> list[TextDelta]:
        """The verdicts as the API turns them into text, up to where it ends the answer."""
        request = GenerationRequest(
            "r", (1,), SamplingParams(max_tokens=max_tokens), num_logprobs=num_logprobs
        )
        text = AnswerText(PreparedRequest("r", request, tuple(stop)), self.card)
        stats, deltas = SpeculationStats(), []
        for verdict in answer.verdicts:
            stats.observe(verdict.num_draft_tokens, verdict.num_accepted, len(verdict.tokens))
            deltas.append(
                text.push(
                    TokenDelta(
                        verdict.tokens,
                        verdict.num_accepted,
                        verdict.num_draft_tokens,
                        verdict.logprobs,
                        verdict.finish_reason,
                        summary=stats.to_summary(),
                    )
                )
            )
            if text.finish_reason is not None:
                break
        return deltas


def pair_open(pair: Pair, prompts: Sequence[Sequence[int]], **options: Any) -> list[Answer]:
    """Open sessions without running them."""
    start = len(pair.answers)
    return [pair.open(request(f"s{start + i}", p, **options)) for i, p in enumerate(prompts)]


def text_of(deltas: Sequence[TextDelta]) -> str:
    """The answer as the client joins it."""
    return "".join(delta.text for delta in deltas)
