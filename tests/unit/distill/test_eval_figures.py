"""Agreement and acceptance by depth on examples small enough for a sheet of paper."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from specdist.distill.eval_acceptance import Tally, acceptance
from specdist.distill.eval_agreement import AgreementSums
from specdist.protocol.verdict import Verdict
from specdist.speculation.cost_model import CostModel


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_agreement_by_hand() -> None:
    target = logits([0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4])
    draft = logits([0.2, 0.7, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4])
    sums = AgreementSums((0.0, 1.0), top_p=1.0)
    sums.add(target[:1], draft[:1])
    first = sums.means()
    assert first.num_positions == 1
    assert first.hit == {1: 0.0, 2: 1.0, 4: 1.0, 8: 1.0}
    assert first.overlap == {0.0: 0.0, 1.0: pytest.approx(0.2 + 0.3 + 0.1)}
    sums.add(target[1:], draft[1:])
    both = sums.means()
    assert both.hit[1] == 0.5
    assert both.overlap == {0.0: 0.5, 1.0: pytest.approx((0.6 + 1.0) / 2)}


def test_temperature_and_top_p_shape_both_laws() -> None:
    target, draft = logits([0.6, 0.3, 0.1]), logits([0.3, 0.6, 0.1])
    sums = AgreementSums((0.5, 1.0), top_p=0.7)
    sums.add(target, draft)
    # At 0.5 the probabilities are squared: 36/46, 9/46; the nucleus of 0.7 is one token each.
    assert sums.means().overlap[0.5] == pytest.approx(0.0)
    # At 1 it is two tokens each: 2/3 and 1/3 against 1/3 and 2/3.
    assert sums.means().overlap[1.0] == pytest.approx(2 / 3)


def test_outside_the_draft_vocabulary_nothing_is_hit_or_covered() -> None:
    target, draft = logits([0.7, 0.2, 0.1]), logits([0.0, 1.0, 0.0])
    sums = AgreementSums((1.0,), top_p=1.0)
    sums.add(target, draft)
    found = sums.means()
    assert found.covered == pytest.approx(0.2)
    assert found.hit == {1: 0.0, 2: 0.0, 4: 0.0, 8: 0.0}


def test_groups_of_positions_add_up() -> None:
    whole, parts = AgreementSums((1.0,), 1.0), [AgreementSums((1.0,), 1.0) for _ in range(2)]
    dice = torch.Generator().manual_seed(1)
    for part, size in zip(parts, (3, 5), strict=True):
        target, draft = torch.randn(2, size, 9, generator=dice)
        part.add(target, draft)
        whole.add(target, draft)
    parts[0].merge(parts[1])
    assert parts[0].means() == whole.means()


def test_nan_of_a_draft_is_no_figure() -> None:
    with pytest.raises(FloatingPointError):
        AgreementSums((1.0,), 1.0).add(logits([0.5, 0.5]), torch.tensor([[math.nan, 0.0]]))


def verdict(num_draft_tokens: int, num_accepted: int) -> Verdict:
    return Verdict("s", 9, tuple(range(num_accepted + 1)), num_accepted, num_draft_tokens)


def test_acceptance_by_depth_by_hand() -> None:
    tally, other = Tally(), Tally()
    tally.begin(verdict(0, 0))  # the prompt's own step: no decoding step, no draft
    for num_candidates, num_accepted in ((3, 3), (3, 1), (3, 0), (0, 0)):
        tally.go_on(verdict(num_candidates, num_accepted), Counter({1: 2}))
    other.begin(verdict(0, 0))
    other.go_on(verdict(3, 2), Counter({1: 2, 4: 1}))
    cost = CostModel()
    cost.observe(1, 0.01)
    one = acceptance([tally], depth=4, drafter_s=0.0, target=cost, draft=cost)
    assert one.acceptance_by_depth == pytest.approx((2 / 3, 1 / 3, 1 / 3, 0))
    assert one.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert one.draft_acceptance_rate == pytest.approx(4 / 9)
    assert one.draft_token_share == pytest.approx(4 / 9)  # 4 of 1 + 4 + 2 + 1 + 1 tokens
    assert (one.num_drafts, one.num_steps, one.num_prompts) == (3, 4, 1)
    assert one.predicted.tokens_per_step == pytest.approx(8 / 4)
    assert one.draft_passes_per_step == 2
    both = acceptance([tally, other], depth=4, drafter_s=0.0, target=cost, draft=cost)
    assert both.acceptance_by_depth == pytest.approx((3 / 4, 2 / 4, 1 / 4, 0))
    assert (both.num_prompts, both.num_accepted_tokens, both.num_generated_tokens) == (2, 6, 13)
