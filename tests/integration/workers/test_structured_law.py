"""Under a grammar the answers follow the target's law cut to it, whatever the rule: chi-square."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from specdist.api.tokenizer import Tokenizer
from specdist.config import SpeculationConfig
from specdist.grammar import Grammars
from specdist.protocol.request import SamplingParams
from specdist.speculation.sampling import SamplingState, log_probs
from tests.integration.workers.structured_rig import EOS, Rig, by_choice
from tests.integration.workers.test_pair_law import chi_square_p
from tests.tiny_models import build_tiny
from tests.unit.api.fakes import byte_level_core

PROMPT = [60, 61, 62]
FORM = by_choice("ha", "hat", "haha", "one", "oh no", "dog")
OPTIONS = {"temperature": 1.5, "top_k": 4}
NUM_SESSIONS = 600
TREE = SpeculationConfig(
    mode="tree", num_speculative_tokens=3, max_tree_nodes=6, max_children=2, max_wait_s=0.0
)


@pytest.fixture(scope="module")
def rig() -> Rig:
    torch.set_num_threads(1)
    return Rig(Tokenizer(byte_level_core(), eos_token_ids=[EOS]))


def exact_law(grammars: Grammars, vocab_size: int) -> dict[tuple[int, ...], float]:
    """The probability of every answer, by transformers' own forward and one mask after another."""
    model = build_tiny("llama", vocab_size=vocab_size, layers=1, hidden=16, seed=1, max_len=512)
    state = SamplingState(SamplingParams(**OPTIONS), constraint=grammars.constraint(FORM))
    law: dict[tuple[int, ...], float] = {}
    open_ended: dict[tuple[int, ...], float] = {(): 1.0}
    while open_ended:
        answer, mass = open_ended.popitem()
        with torch.inference_mode():
            logits = model(torch.tensor([[*PROMPT, *answer]])).logits[0, -1:]
        row = log_probs(logits, state, [answer])[0].exp()
        for token in torch.nonzero(row).squeeze(1).tolist():
            longer = law if token == EOS else open_ended
            longer[(*answer, token)] = mass * float(row[token])
    return law


@pytest.mark.parametrize("rule", ["coupled", "rejection", "traversal"])
def test_answers_follow_the_masked_law(rig: Rig, rule: str) -> None:
    law = exact_law(rig.grammars, rig.tokenizer.vocab_size)
    assert len(law) > 8 and sum(law.values()) == pytest.approx(1.0, abs=1e-5)
    pair = rig.pair("wrong", speculation=TREE)
    requests = [
        rig.request(
            i, FORM, True, rule=rule, prompt=PROMPT, logit_bias=(),
            **{**OPTIONS, "seed": 7919 * i + 13},
        )
        for i in range(NUM_SESSIONS)
    ]  # fmt: skip
    answers = pair.answer_all(requests, concurrency=50)
    assert sum(a.num_accepted for a in answers) > 100
    counts = Counter(tuple(a.tokens) for a in answers)
    assert set(counts) <= set(law)
    assert chi_square_p(counts, law) > 0.001
