"""Losses against their definitions, chains against plain decoding, the choice of outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdist.distill.agreement import CHAINS, DEPTHS, chain_sums
from specdist.distill.losses import loss_rows
from specdist.distill.output_vocab import most_frequent, num_outputs
from specdist.distill.settings import DistillSettings
from specdist.distill.train import learning_rate
from specdist.errors import ConfigError


@pytest.fixture
def laws() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 50, 7, generator=generator).unbind()
    return student, teacher, student.softmax(-1), teacher.softmax(-1)


def test_losses_are_what_they_say(laws: tuple[torch.Tensor, ...]) -> None:
    student, teacher, q, p = laws
    kl = (p * (p / q).log()).sum(-1)
    tv = 1 - torch.minimum(p, q).sum(-1)
    torch.testing.assert_close(loss_rows("forward_kl", student, teacher, 0), kl)
    reverse = (q * (q / p).log()).sum(-1)
    torch.testing.assert_close(loss_rows("reverse_kl", student, teacher, 0), reverse)
    torch.testing.assert_close(loss_rows("tv", student, teacher, 0), tv)
    torch.testing.assert_close(loss_rows("mix", student, teacher, 0.25), 0.75 * kl + 0.25 * tv)


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "tv", "mix"])
def test_every_loss_leads_to_the_teacher(name: str, laws: tuple[torch.Tensor, ...]) -> None:
    student, teacher = laws[0].clone().requires_grad_(), laws[1]
    before = float(loss_rows(name, student, teacher, 0.5).mean().detach())
    optimizer = torch.optim.Adam([student], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss_rows(name, student, teacher, 0.5).mean().backward()
        optimizer.step()
    assert float(loss_rows(name, student, teacher, 0.5).mean().detach()) < 0.1 * before


def decode(accepted: list[bool], length: int) -> int:
    """Steps that decoding takes with chains of ``length`` tokens, token by token."""
    position = steps = 0
    while position < len(accepted):
        drafted = 0
        while drafted < length and position < len(accepted) and accepted[position]:
            position, drafted = position + 1, drafted + 1
        position, steps = position + 1, steps + 1  # the next token is the target's own
    return steps


def test_chains_are_those_of_decoding() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        accepted = rng.random(int(rng.integers(1, 40))) < 0.7
        row = chain_sums(accepted)
        for length in CHAINS:
            assert row[f"steps{length}"] == decode(accepted.tolist(), length)
        for depth in DEPTHS:
            runs = [accepted[i : i + depth] for i in range(len(accepted) - depth + 1)]
            assert row[f"depth{depth}"] == sum(run.all() for run in runs)


@pytest.mark.parametrize(
    ("asked", "vocab_size", "number"),
    [
        ("auto", 16_384, None),
        ("auto", 16_385, 8192),
        ("all", 50_000, None),
        ("512", 1000, 512),
    ],
)
def test_how_many_outputs_are_asked_for(asked: str, vocab_size: int, number: int | None) -> None:
    assert num_outputs(asked, vocab_size) == number


def test_outputs_are_sorted_unique_and_hold_the_forced_ones() -> None:
    expected = torch.tensor([0.0, 0, 0, 9, 0, 3, 1, 1, 0, 0], dtype=torch.float64)
    prompts = torch.tensor([0, 0, 0, 0, 0, 0, 0, 5, 2, 0])
    assert most_frequent(expected, prompts, [0, 2], 5).tolist() == [0, 2, 3, 5, 7]
    with pytest.raises(ConfigError, match="output_vocab must be from 2 to 10, got 11"):
        most_frequent(expected, prompts, [0, 2], 11)


def test_the_learning_rate_warms_up_and_comes_down() -> None:
    settings = DistillSettings(target="t", out="o", learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(step, settings, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.03
