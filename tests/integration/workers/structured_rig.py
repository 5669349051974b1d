"""Pairs over the demo target's vocabulary: tiny random models, real tokens, real grammars."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from specdist.api.tokenizer import Tokenizer
from specdist.config import AppConfig, EngineConfig, RulesConfig, SpeculationConfig
from specdist.distill.offline_pair import Answer, OfflinePair
from specdist.engine.engine import Engine
from specdist.engine.loader import LoadedModel, prepare
from specdist.grammar import Grammars
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.protocol.request import SessionRequest, StructuredOutput
from tests.integration.reports.rigs import steady_cost
from tests.pair import request
from tests.tiny_models import build_tiny

EOS = 2
SPECULATION = SpeculationConfig(
    mode="tree",
    num_speculative_tokens=4,
    max_tree_nodes=8,
    max_children=2,
    draft_ahead_nodes=4,
    max_wait_s=0.0,
)
ENGINE = EngineConfig(dtype="float32", kv_cache_bytes=32 << 20, max_model_len=512)


def tiny(vocab_size: int, seed: int) -> LoadedModel:
    """A random model over a real vocabulary."""
    return prepare(
        build_tiny("llama", vocab_size=vocab_size, layers=1, hidden=16, seed=seed, max_len=512)
    )


class RecordingPair(OfflinePair):
    """Keeps every tree that the draft offers."""

    def __init__(self, *arguments: Any) -> None:
        self.trees: list[CandidateTree] = []
        super().__init__(*arguments)

    def _on_offers(self, router_id: str, target_id: str, offers: Offers) -> None:
        self.trees += offers.trees
        super()._on_offers(router_id, target_id, offers)


class Rig:
    """Two tiny models, a vocabulary and its grammars; makes pairs of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.grammars = Grammars(tokenizer.to_json, [EOS])
        self.target = tiny(tokenizer.vocab_size, seed=1)
        self.wrong = tiny(tokenizer.vocab_size, seed=5)
        self.closing = self._closing_bias()

    def pair(
        self,
        draft: str,
        masked_ids: Sequence[int] = (),
        grammars: Grammars | None = None,
        speculation: SpeculationConfig = SPECULATION,
    ) -> RecordingPair:
        """``draft``: off, self, wrong or ngram; ``masked_ids``: what the draft cannot say."""
        drafters = ("ngram",) if draft in ("off", "ngram") else ("draft_model", "ngram")
        config = AppConfig(
            target=ENGINE,
            draft=ENGINE,
            speculation=dataclasses.replace(
                speculation, drafters=drafters, draft_ahead=draft == "self"
            ),
            rules=RulesConfig(allow_lossy=True),
        )
        vocab = self.tokenizer.vocab_size
        model = {"self": self.target, "wrong": self.wrong}.get(draft)
        engine = Engine(model, config.draft, vocab, masked_ids) if model else None
        target = Engine(self.target, config.target, vocab)
        return RecordingPair(config, target, engine, steady_cost(), grammars or self.grammars)

    def answers(
        self, draft: str, forms: Sequence[StructuredOutput], **options: Any
    ) -> tuple[list[Answer], RecordingPair]:
        """The answers to one request for each form, sixteen together."""
        masked = options.pop("masked_ids", ())
        pair = self.pair(draft, masked)
        requests = [
            self.request(i, form, draft != "off", **options) for i, form in enumerate(forms)
        ]
        return pair.answer_all(requests, concurrency=16), pair

    def request(
        self, i: int, form: StructuredOutput, speculate: bool, **options: Any
    ) -> SessionRequest:
        options = {"max_tokens": 160, "logit_bias": self.closing, "seed": i, **options}
        prompt = options.pop("prompt", [5 + i, 100, 200])
        return request(f"s{i}", prompt, speculate=speculate, structured_output=form, **options)

    def taken_up(self, asked: SessionRequest, answer: Sequence[int]) -> SessionRequest:
        """The request as another replica gets it, behind what was decided so far."""
        return dataclasses.replace(asked, committed=(*asked.committed, *answer))

    def text(self, answer: Answer) -> str:
        return self.tokenizer.decode(answer.tokens)

    def candidates_are_allowed(
        self, tree: CandidateTree, asked: SessionRequest, answer: Answer
    ) -> bool:
        """Whether every node of an offered tree may follow on its path."""
        assert asked.sampling.structured_output is not None
        constraint = self.grammars.constraint(asked.sampling.structured_output)
        constraint.commit(answer.tokens[: tree.base_len - len(asked.committed)])
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            before = () if parent < 0 else paths[parent]
            allowed = constraint.allowed(before)
            if allowed is None or not allowed[token]:
                return False
            paths.append((*before, token))
        return True

    def _closing_bias(self) -> tuple[tuple[int, float], ...]:
        """Makes a random model come to an end: less blanks, more of what closes something."""
        bias = {EOS: 9.0}
        for i in range(self.tokenizer.vocab_size):
            data = self.tokenizer.token_bytes(i)
            if data and not data.strip():
                bias[i] = -6.0
            elif data == b"null" or (data and set(data) <= set(b'"]}')):
                bias[i] = 9.0 if b'"' in data else 6.0
        return tuple(bias.items())


def by_schema(value: Any) -> StructuredOutput:
    return StructuredOutput("json_schema", json.dumps(value))


def by_choice(*choices: str) -> StructuredOutput:
    return StructuredOutput("choice", json.dumps(choices))


def by_regex(pattern: str) -> StructuredOutput:
    return StructuredOutput("regex", pattern)
