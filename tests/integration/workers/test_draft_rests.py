"""A draft that pauses says so: the target does not wait for candidates that will not come."""

from __future__ import annotations

import pytest
import torch

from specdist.config import SpeculationConfig
from tests.pair import Pair, request
from tests.tiny_models import build_tiny

VOCAB = 97
MAX_TOKENS = 40


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_nothing_to_offer_is_nothing_to_wait_for() -> None:
    # Prompt lookup alone, in a text that never repeats: every offer is empty, drafting pauses.
    synchronous = SpeculationConfig(mode="tree", drafters=("ngram",), draft_ahead=False)
    pair = Pair(build_tiny("llama", vocab_size=VOCAB, layers=2, seed=1), speculation=synchronous)
    bias = tuple((token, 1000.0 - 10 * token) for token in range(3, VOCAB))
    answer = pair.open(
        request("s0", [3], max_tokens=MAX_TOKENS, logit_bias=bias, presence_penalty=1500.0)
    )
    pair.target.step()  # takes the session up
    waits = []
    while answer.finish_reason is None:
        pair.draft.step()
        pair.target._take_messages()
        waits.append(pair.target._sessions["s0"].worth_waiting())
        pair.target.step()
    assert answer.num_draft_tokens == 0 and len(set(answer.tokens)) == MAX_TOKENS
    assert not any(waits)
