"""Draft rigs and reference prompts for the public bug reports (B001 to B114).

A ``ScriptedDraft`` stands where the draft worker stands and offers what a function says:
wrong tokens, end tokens, known continuations. Model rigs wrap the target's own model
(padded vocabulary, NaN). Used by the tests of this folder only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from specdist.config import SpeculationConfig
from specdist.engine.loader import LoadedModel
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import StepReport
from specdist.speculation.cost_model import CostModel
from tests.pair import Answer, Pair

EOS = 2
Propose = Callable[[str, list[int]], CandidateTree | Sequence[int] | None]

NUMBERS = "Count from 1 to 10, separated by commas. Output only the numbers."
TEXTS = {
    "P-NUMS": "1, 2, 3, 4, 5,",
    "P-HA": "ha ha ha ha ha ha",
    "P-OHM": "Ω Ω Ω Ω Ω Ω Ω Ω",
    "P-PARIS": "The capital of France is",
    "P-FOX": "The quick brown fox jumps over the lazy dog. " * 2 + "The quick",
    "P-LLAMA": "🦙 🦙 🦙 🦙 🦙 🦙",
}
CHATS = {"P-COUNT": NUMBERS, "P-HI": "Say hi."}
NUM_PROMPT_TOKENS = {
    "P-COUNT": 48, "P-NUMS": 14, "P-HA": 6, "P-OHM": 16, "P-PARIS": 5, "P-FOX": 22,
    "P-LLAMA": 18, "P-HI": 33,
}  # fmt: skip
COUNTED = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28, 216, 38, 28, 216]
COUNTED += [39, 28, 216, 40, 28, 216, 41, 28, 216, 33, 32]
GOLD = {  # only as far as the gap between the two likeliest tokens is wide
    "P-COUNT": [*COUNTED, EOS],
    "P-NUMS": [216, *COUNTED[15:], 28],
    "P-HA": [421, 88, *[421] * 14],
    "P-OHM": [5664, 119] * 6,
    "P-PARIS": [7042, 30, 198, 198, 504, 2988, 314, 42],
    "P-FOX": [6354, 16438],
    "P-LLAMA": [15107, 116, 243],
}


def steady_cost(step_s: float = 0.01, per_row_s: float = 0.0005) -> CostModel:
    """A cost model that no measurement moves: decisions do not depend on the machine."""
    cost = CostModel(rate=1e-9)
    for edge in cost.edges:
        cost.observe(edge, step_s + per_row_s * edge)
    return cost


def fixed(gamma: int, **more: Any) -> SpeculationConfig:
    """Chains of ``gamma`` tokens from the draft model, one after the other."""
    more.setdefault("draft_ahead", False)
    return SpeculationConfig(
        mode="fixed", num_speculative_tokens=gamma, drafters=("draft_model",), **more
    )


def wide(gamma: int = 16, nodes: int = 64) -> SpeculationConfig:
    """Whatever a scripted draft offers is verified."""
    return SpeculationConfig(mode="tree", num_speculative_tokens=gamma, max_tree_nodes=nodes)


class ScriptedDraft:
    """Offers ``propose(session id, committed tokens)`` at every new root."""

    def __init__(self, pair: Pair, propose: Propose) -> None:
        self._pair, self._propose = pair, propose
        self._tokens: dict[str, list[int]] = {}
        self._due: set[str] = set()

    def open(self, request: SessionRequest, router_id: str) -> None:
        self._tokens[request.session_id] = list(request.committed)
        self._due.add(request.session_id)

    def observe(self, report: StepReport) -> None:
        for verdict in report.verdicts:
            tokens = self._tokens.get(verdict.session_id)
            if tokens is None:
                continue
            assert verdict.base_len == len(tokens)
            tokens.extend(verdict.tokens)
            self._due.add(verdict.session_id)
            if verdict.finish_reason is not None:
                self.close([verdict.session_id])

    def close(self, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            self._tokens.pop(session_id, None)
            self._due.discard(session_id)

    def step(self) -> bool:
        trees = [self._tree(session_id) for session_id in sorted(self._due)]
        self._due.clear()
        if trees:
            self._pair.target.offer(Offers("d0", tuple(t for t in trees if t is not None)))
        return False

    def _tree(self, session_id: str) -> CandidateTree | None:
        tokens = self._tokens[session_id]
        found = self._propose(session_id, tokens)
        if found is None or isinstance(found, CandidateTree):
            return found
        return chain(session_id, len(tokens), found)


def chain(session_id: str, base_len: int, tokens: Sequence[int], **more: Any) -> CandidateTree:
    """A path of candidates, each taken for nearly certain."""
    count = len(tokens)
    scores = tuple(0.95 ** (i + 1) for i in range(count))
    return CandidateTree(
        session_id, base_len, tuple(tokens), tuple(range(-1, count - 1)), scores, **more
    )


def scripted(model: Any, propose: Propose, **options: Any) -> Pair:
    """A pair whose draft follows a script."""
    options.setdefault("speculation", wide())
    pair = Pair(model, None, **options)
    pair.draft = ScriptedDraft(pair, propose)  # type: ignore[assignment]
    return pair


def oracle(gamma: int, *texts: Sequence[int], wrong_every: int = 0) -> Propose:
    """Knows whole texts (prompt and answer) and offers what follows; D-SELF without a model."""

    def propose(session_id: str, committed: list[int]) -> list[int]:
        at = len(committed)
        for text in texts:
            if list(text[:at]) == committed:
                guess = list(text[at : at + gamma])
                for i in range(len(guess)):
                    if wrong_every and (at + i) % wrong_every == 0:
                        guess[i] += 1
                return guess
        return []

    return propose


def drain(pair: Pair) -> None:
    """Let both workers take up what ended."""
    pair.target.step()
    pair.draft.step()


def check_accounts(pair: Pair, answer: Answer, max_tokens: int) -> None:
    """B012, B016, B107, B110: nothing after the end, and no part above the whole."""
    assert len(answer.tokens) <= max_tokens
    assert EOS not in answer.tokens[:-1]
    for verdict in answer.verdicts:
        assert 0 <= verdict.num_accepted <= verdict.num_draft_tokens
        assert len(verdict.tokens) - 1 <= verdict.num_accepted <= len(verdict.tokens)
        assert verdict.base_len == answer.verdicts[0].base_len + sum(
            len(v.tokens) for v in answer.verdicts[: answer.verdicts.index(verdict)]
        )
    assert answer.num_accepted <= len(answer.tokens)


class WrappedModel:
    """The target's model with other logits; weights are shared."""

    def __init__(self, loaded: LoadedModel, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._model, self._change = loaded.model, change

    def __call__(self, **inputs: Any) -> Any:
        return SimpleNamespace(logits=self._change(self._model(**inputs).logits))

    def get_input_embeddings(self) -> Any:
        return self._model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return self._model.get_output_embeddings()


def wrapped(
    loaded: LoadedModel, change: Callable[[torch.Tensor], torch.Tensor], **fields: Any
) -> LoadedModel:
    """A loaded model whose logits are changed before anybody sees them."""
    return dataclasses.replace(loaded, model=WrappedModel(loaded, change), **fields)


def padded(loaded: LoadedModel, rows: int = 128) -> LoadedModel:
    """D-PAD: rows behind the vocabulary, with the largest logits of all."""
    return wrapped(loaded, lambda x: torch.nn.functional.pad(x, (0, rows), value=1e4))


def broken(loaded: LoadedModel) -> LoadedModel:
    """D-NAN."""
    return wrapped(loaded, lambda x: torch.full_like(x, torch.nan))
