"""Group G on tiny models: rollback, positions, block edges, prefix cache, preemption."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from specdist.engine.loader import prepare
from tests.integration.reports.real_target import pair_open
from tests.integration.reports.rigs import (
    check_accounts,
    drain,
    fixed,
    oracle,
    scripted,
    wide,
)
from tests.pair import Answer, Pair
from tests.tiny_models import build_tiny

VOCAB = 97
LONG = {"max_model_len": 512, "kv_cache_bytes": 8 << 20}


def text(length: int, seed: int = 0) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, VOCAB) for _ in range(length)]


def off(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    pair = Pair(model, None, target=LONG)
    return [a.tokens for a in pair.generate(prompts, speculate=False, **options)]


def pool(model: Any, num_blocks: int, block_size: int = 16, **more: Any) -> dict[str, Any]:
    """Engine settings for so many blocks."""
    size = num_blocks * block_size * model.kv_shape.token_bytes
    return {"block_size": block_size, "kv_cache_bytes": size, "max_model_len": 512, **more}


def rate(answer: Answer, first: int = 0, last: int | None = None) -> float:
    verdicts = [v for v in answer.verdicts[first:last] if v.num_draft_tokens]
    drafted = sum(v.num_draft_tokens for v in verdicts)
    return sum(v.num_accepted for v in verdicts) / drafted if drafted else 0.0


def held_fits(pair: Pair) -> bool:
    """Blocks in use are those of the committed tokens (the last one may lack its row yet)."""
    engine = pair.target_engine
    most = sum(-(-len(s.tokens) // engine.block_size) for s in engine.sequences)
    least = sum(-(-s.num_computed // engine.block_size) for s in engine.sequences)
    return least <= engine.usage().num_held <= most


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_b078_last_candidate_rejected(tiny: Any, prefix_cache: bool, rule: str) -> None:
    """B078: committed == prompt + emitted after every step, gamma 1, all rejected or not."""
    draft = build_tiny("llama", vocab_size=VOCAB, layers=1, seed=99)
    pair = Pair(tiny, draft, speculation=fixed(1), target={"prefix_cache": prefix_cache})
    sampling = {"temperature": 0.8, "seed": 3, "rule": rule, "max_tokens": 30}
    (answer,) = pair_open(pair, [text(33)], **sampling)
    while answer.finish_reason is None:
        for _ in range(4):
            pair.draft.step()
        pair.target.step()
        for seq in pair.target_engine.sequences:
            assert len(seq.tokens) == 33 + len(answer.tokens)
            assert seq.num_computed in (0, len(seq.tokens) - 1)
    check_accounts(pair, answer, 30)
    if rule == "coupled":
        plain = {key: sampling[key] for key in ("temperature", "seed", "max_tokens")}
        assert answer.tokens == off(tiny, [text(33)], **plain)[0]


def test_b079_acceptance_is_flat_and_draft_kv_is_complete(tiny: Any) -> None:
    """B079: a draft that errs at every 10th position keeps its rate and its own cache."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=200, ignore_eos=True)
    pair = scripted(tiny, oracle(4, [*prompt, *plain], wrong_every=10), target=LONG)
    (answer,) = pair.generate([prompt], max_tokens=200, ignore_eos=True)
    assert answer.tokens == plain
    count = len(answer.verdicts)
    assert abs(rate(answer, 1, count // 3) - rate(answer, -count // 3, None)) < 0.1
    # The draft worker itself: after rejections its cache holds every committed token but the
    # root, whose row comes with the next forward pass.
    near = build_tiny("llama", vocab_size=VOCAB, layers=2, seed=1)
    near.lm_head.weight.data[::9] *= 1.5
    pair = Pair(tiny, near, speculation=fixed(4), target=LONG, draft=LONG)
    (answer,) = pair_open(pair, [prompt], max_tokens=120, ignore_eos=True)
    while answer.finish_reason is None:
        for _ in range(8):
            pair.draft.step()
        for seq in pair.draft_engine.sequences:
            assert seq.num_computed == len(seq.tokens) == len(prompt) + len(answer.tokens)
        pair.target.step()
    assert 0 < answer.num_accepted < answer.num_draft_tokens
    assert answer.tokens == plain[:120]


@pytest.mark.parametrize("gamma", [2, 8])
def test_b080_closed_early_then_asked_again(tiny: Any, gamma: int) -> None:
    """B080: draft lengths shrink at the end; a closed stream leaves nothing behind."""
    prompt = text(14, 2)
    (plain,) = off(tiny, [prompt], max_tokens=9)
    pair = Pair(tiny, tiny, speculation=fixed(gamma))
    (cut,) = pair_open(pair, [prompt], max_tokens=9)
    while len(cut.verdicts) < 2:
        pair.draft.step()
        pair.target.step()
    pair.target.close(["s0"])
    pair.draft.close(["s0"])
    cut.finish_reason = "closed"
    drain(pair)
    assert pair.target_engine.usage().num_held == pair.draft_engine.usage().num_held == 0
    (again,) = pair.generate([prompt], max_tokens=9)
    assert again.tokens == plain and plain[: len(cut.tokens)] == cut.tokens
    check_accounts(pair, again, 9)


def test_b083_sliding_window_shorter_than_the_text() -> None:
    """B083: window 8, prompt 6, 20 tokens, gamma 4: the target's and the draft's window."""
    model = prepare(build_tiny("mistral", vocab_size=VOCAB, layers=2, seed=4, window=8))
    plain = off(model, [text(6)], max_tokens=20, ignore_eos=True)
    for speculation in (fixed(4), wide(4, 16)):
        pair = Pair(model, model, speculation=speculation)
        (answer,) = pair.generate([text(6)], max_tokens=20, ignore_eos=True)
        assert answer.tokens == plain[0] and answer.num_accepted > 8


def test_b088_draft_has_its_context_on_a_prefix_hit(tiny: Any) -> None:
    """B088: the same long prompt twice; the second run accepts as much as the first."""
    pair = Pair(tiny, tiny, speculation=fixed(4), target=LONG, draft=LONG)
    (first,) = pair.generate([text(400)], max_tokens=41, ignore_eos=True, draft_steps=20)
    (second,) = pair.generate([text(400)], max_tokens=41, ignore_eos=True, draft_steps=20)
    assert second.verdicts[0].num_cached_tokens == 384 and first.tokens == second.tokens
    assert rate(first) == rate(second) == 1.0


def test_b089_speculation_keeps_prefix_reuse(tiny: Any) -> None:
    """B089, B012: five turns, each extends the last; on and off find the same tokens cached."""
    cached = {}
    for draft in (None, tiny):
        pair = Pair(tiny, draft, target=LONG, draft=LONG)
        prompt, counts = text(30), []
        for turn in range(5):
            options = {"max_tokens": 20, "speculate": draft is not None}
            (answer,) = pair.generate([prompt], draft_steps=20, **options)
            counts.append(answer.verdicts[0].num_cached_tokens)
            prompt = [*prompt, *answer.tokens, *text(9, turn)]
        cached[draft is None] = counts
    assert all(abs(a - b) <= 16 for a, b in zip(cached[True], cached[False], strict=True))
    assert cached[False][-1] > 90


def test_b090_no_candidates_before_prefill_ends(tiny: Any) -> None:
    """B090: a prompt in chunks beside a running answer; both as plain, none drafted early."""
    prompts = [text(20), text(400, 1)]
    plain = off(tiny, prompts, max_tokens=40, ignore_eos=True)
    chunks = {**LONG, "max_prefill_chunk": 32, "max_step_tokens": 64}
    pair = Pair(tiny, tiny, speculation=fixed(4), target=chunks, draft=LONG)
    options = {"max_tokens": 40, "ignore_eos": True}
    (short,) = pair_open(pair, prompts[:1], **options)
    for _ in range(3):
        pair.draft.step()
        pair.target.step()
    (long,) = pair_open(pair, prompts[1:], **options)
    begun = len(pair.reports)
    pair.run(draft_steps=20)
    assert [short.tokens, long.tokens] == plain
    assert long.verdicts[0].num_draft_tokens == 0 and long.verdicts[1].num_draft_tokens == 4
    first = next(i for i, r in enumerate(pair.reports) if r.verdicts[-1].session_id == "s1")
    assert first - begun >= 400 // 32 - 6  # the short answer went on meanwhile


@pytest.mark.parametrize("block_size", [1, 4])
def test_b091_b094_candidates_over_block_edges(tiny: Any, block_size: int) -> None:
    """B091: gamma 16 over blocks of 4, accepted. B094: gamma 8 all rejected, blocks go back."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=100, ignore_eos=True)
    sizes = {**LONG, "block_size": block_size}
    full = [*prompt, *plain]
    for propose in (
        oracle(16, full),
        oracle(8, full, wrong_every=1),
        oracle(9, full, wrong_every=5),
    ):
        pair = scripted(tiny, propose, target=sizes)
        (answer,) = pair_open(pair, [prompt], max_tokens=100, ignore_eos=True)
        while answer.finish_reason is None:
            pair.draft.step()
            pair.target.step()
            assert held_fits(pair)
        assert answer.tokens == plain and answer.num_draft_tokens > 0
        pair.target_engine.check_integrity()


def test_b098_draft_is_up_to_date_after_a_rest(tiny: Any) -> None:
    """B098: gamma 4, then 0 for 20 tokens, then 4: everything is accepted again at once."""
    pair = Pair(tiny, tiny, speculation=fixed(4))
    (answer,) = pair_open(pair, [text(14)], max_tokens=100, ignore_eos=True)

    def advance(num_tokens: int) -> list[Any]:
        before = len(answer.verdicts)
        end = len(answer.tokens) + num_tokens
        while len(answer.tokens) < end:
            for _ in range(8):
                pair.draft.step()
            pair.target.step()
        return answer.verdicts[before:]

    advance(20)
    resting = dataclasses.replace(fixed(4), mode="off")
    for worker in (pair.target, pair.draft):
        worker.reconfigure(resting)
    assert not any(v.num_draft_tokens for v in advance(20)[1:])
    for worker in (pair.target, pair.draft):
        worker.reconfigure(fixed(4))
    resumed = advance(30)
    assert sum(v.num_draft_tokens > 0 for v in resumed) >= len(resumed) - 2
    assert all(v.num_accepted == v.num_draft_tokens for v in resumed)
