"""Speculation on gives the tokens of speculation off: drafts, trees, blocks, timing, sampling."""

from __future__ import annotations

import random

import pytest
import torch

from specdist.config import SpeculationConfig
from tests.pair import Pair
from tests.tiny_models import build_tiny

VOCAB = 97
DICE = random.Random(3)
PROMPTS = [[DICE.randrange(3, VOCAB) for _ in range(5 + 7 * i)] for i in range(6)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models() -> dict[str, object]:
    target = build_tiny("llama", vocab_size=VOCAB, layers=2, seed=1)
    near = build_tiny("llama", vocab_size=VOCAB, layers=2, seed=1)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    return {
        "target": target,
        "self": target,
        "near": near,
        "wrong": build_tiny("llama", vocab_size=VOCAB, layers=1, seed=99),
    }


def off(models: dict[str, object], **options: object) -> list[list[int]]:
    pair = Pair(models["target"], None)
    return [a.tokens for a in pair.generate(PROMPTS, speculate=False, **options)]


SETTINGS = [
    SpeculationConfig(mode="fixed", num_speculative_tokens=1, drafters=("draft_model",)),
    SpeculationConfig(mode="fixed", num_speculative_tokens=8, drafters=("draft_model",)),
    SpeculationConfig(mode="tree", num_speculative_tokens=4, max_tree_nodes=32),
    SpeculationConfig(mode="tree", max_tree_nodes=4, draft_ahead=False),
    SpeculationConfig(mode="adaptive"),
]


@pytest.mark.parametrize("draft", ["self", "near", "wrong"])
@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy_equals_plain(
    models: dict[str, object], draft: str, settings: SpeculationConfig, block_size: int
) -> None:
    blocks = {"block_size": block_size}
    pair = Pair(models["target"], models[draft], speculation=settings, target=blocks, draft=blocks)
    answers = pair.generate(PROMPTS, max_tokens=24)
    assert [a.tokens for a in answers] == off(models, max_tokens=24)
    if draft == "self":
        assert sum(a.num_accepted for a in answers) > 0.4 * sum(len(a.tokens) for a in answers)
    pair.target_engine.check_integrity()
    assert pair.target_engine.usage().num_held == 0
    assert pair.draft_engine is not None and pair.draft_engine.usage().num_held == 0


@pytest.mark.parametrize("draft", ["self", "near", "wrong"])
@pytest.mark.parametrize("draft_steps", [0, 1, 3, 20])
def test_sampled_equals_plain_whatever_the_timing(
    models: dict[str, object], draft: str, draft_steps: int
) -> None:
    options = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    pair = Pair(models["target"], models[draft])
    answers = pair.generate(PROMPTS, draft_steps=draft_steps, **options)
    assert [a.tokens for a in answers] == off(models, **options)


def test_self_draft_is_always_accepted(models: dict[str, object]) -> None:
    settings = SpeculationConfig(
        mode="fixed", num_speculative_tokens=4, drafters=("draft_model",), draft_ahead=False
    )
    pair = Pair(models["target"], models["self"], speculation=settings)
    (answer,) = pair.generate(PROMPTS[:1], max_tokens=26)
    assert answer.num_accepted == answer.num_draft_tokens
    assert [len(v.tokens) for v in answer.verdicts[1:-1]] == [5] * len(answer.verdicts[1:-1])


@pytest.mark.parametrize("rule", ["rejection", "traversal", "typical"])
@pytest.mark.parametrize("draft", ["self", "wrong"])
def test_every_rule_is_greedy_at_temperature_0(
    models: dict[str, object], rule: str, draft: str
) -> None:
    pair = Pair(models["target"], models[draft])
    answers = pair.generate(PROMPTS, max_tokens=16, rule=rule)
    assert [a.tokens for a in answers] == off(models, max_tokens=16)
