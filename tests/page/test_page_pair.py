"""The page over two tiny models that really speculate: what it shows is what they did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from selenium.webdriver import Chrome

from specdist.api.model_card import ModelCard
from specdist.config import SpeculationConfig
from tests.page.backends import RealPair
from tests.page.browser import Visitor, served
from tests.pair import Pair
from tests.tiny_models import build_tiny

NUM_TOKENS = 60
# Trees of a few candidates in every step, whether they pay or not.
TREES = SpeculationConfig(mode="tree", num_speculative_tokens=4, max_tree_nodes=8)


@pytest.fixture(scope="module")
def real(driver: Chrome, card: ModelCard) -> Iterator[Visitor]:
    """The page over a target and a draft that is nearly the target."""
    torch.set_num_threads(1)
    vocab_size = card.vocab_size
    target, draft = (build_tiny("llama", vocab_size=vocab_size, seed=1) for _ in range(2))
    dice = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=dice)
            parameter += 0.05 * parameter.std() * noise
    pair = Pair(target, draft, speculation=TREES, vocab_size=vocab_size)
    with served(RealPair(pair), card) as url:
        visitor = Visitor(driver, url)
        visitor.open()
        yield visitor


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_the_same_words_with_and_without(real: Visitor, temperature: float) -> None:
    """Random tokens, so parts of characters too: the text must come out whole all the same."""
    real.open()
    real.set("temperature", temperature)
    real.set("max_tokens", NUM_TOKENS)
    real.set("seed", 4)
    real.ask("hello")
    assert real.text(".verdict .same") == "Identical: yes"
    assert real.answer(0) == real.answer(1) != ""
    origins = [origin for _, origin in real.tokens(0)]
    assert {"accepted", "next"} <= set(origins)
    assert {origin for _, origin in real.tokens(1)} == {"plain"}
    assert float(real.figure("length", 0)) > 1
    assert real.take_log() == []


def test_another_seed_gives_other_words(real: Visitor) -> None:
    """The check above could see a difference."""
    texts = []
    for seed in (4, 5):
        real.open()
        for name, value in (("temperature", 1.5), ("max_tokens", NUM_TOKENS), ("seed", seed)):
            real.set(name, value)
        real.mode("on")
        real.ask("hello")
        texts.append(real.answer(0))
    assert texts[0] != texts[1]
