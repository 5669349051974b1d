"""A draft that pauses says so: the target does not wait for candidates that will not come."""

from __future__ import annotations

import pytest
import torch

from specdist.config import SpeculationConfig
from specdist.protocol.candidates import CandidateTree
from tests.pair import Pair, request
from tests.tiny_models import build_tiny

VOCAB = 97
MAX_TOKENS = 40


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_target_waits_for_no_draft_that_rests() -> None:
    synchronous = SpeculationConfig(mode="tree", draft_ahead=False)
    model = build_tiny("llama", vocab_size=VOCAB, layers=1, seed=1)
    pair = Pair(model, model, speculation=synchronous)
    pair.open(request("s0", [3, 4, 5], max_tokens=MAX_TOKENS))
    pair.target.step()
    while pair.draft.step():
        pass
    pair.target.step()  # with the draft's first tree: another one will come
    session = pair.target._sessions["s0"]
    assert session.worth_waiting()
    assert session.offer(CandidateTree("s0", session.committed_len, (), (), rests=True))
    assert not session.worth_waiting()
    while pair.draft.step():
        pass
    pair.target.step()
    assert session.worth_waiting()
