"""A draft that pauses says so: the target does not wait for candidates that will not come."""

from __future__ import annotations

import pytest
import torch

from specdist.config import SpeculationConfig
from specdist.protocol.candidates import CandidateTree, Offers
from specdist.workers.target_session import STEPS_BEFORE_NEXT_WAIT
from tests.pair import Pair, request
from tests.tiny_models import build_tiny

VOCAB = 97
MAX_TOKENS = 40
LATE_STEPS = 12


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


class LatePair(Pair):
    """Offers reach the target when the test lets them."""

    def __init__(self, *models: object, speculation: SpeculationConfig) -> None:
        self.held: list[tuple[str, str, Offers]] = []
        super().__init__(*models, speculation=speculation)

    def _on_offers(self, router_id: str, target_id: str, offers: Offers) -> None:
        self.held.append((router_id, target_id, offers))

    def step_late(self) -> None:
        """The target waits for nothing: what the draft makes meanwhile has a root that is gone."""
        self._draft(None)
        self.target.step()
        self.deliver()

    def step_waiting(self) -> None:
        """The target waits for the draft if it would."""
        if self.target._sessions["s0"].worth_waiting():
            self._draft(None)
            self.deliver()
            self.target.step()
        else:
            self.step_late()

    def deliver(self) -> None:
        held, self.held = self.held, []
        for offers in held:
            super()._on_offers(*offers)


def test_a_draft_that_was_late_for_a_while_is_used_again() -> None:
    """Its drawn trees are of use in time or not at all: it must not rest for ever."""
    model = build_tiny("llama", vocab_size=VOCAB, layers=1, seed=1)
    pair = LatePair(model, model, speculation=SpeculationConfig(mode="tree", draft_ahead=False))
    asked = request("s0", [3, 4, 5], max_tokens=100, rule="rejection", temperature=1.0)
    answer = pair.open(asked)
    for _ in range(LATE_STEPS):
        pair.step_late()
    assert not answer.num_draft_tokens and not answer.finish_reason
    for _ in range(STEPS_BEFORE_NEXT_WAIT + 1):
        pair.step_waiting()
    assert answer.num_draft_tokens
