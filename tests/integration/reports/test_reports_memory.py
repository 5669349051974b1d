"""B092, B093, B096, B099 on tiny models: pools too small, and memory that runs out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdist.config import EngineConfig
from specdist.engine import memory
from specdist.engine.engine import Engine
from tests.integration.reports.real_target import pair_open
from tests.integration.reports.rigs import check_accounts, drain, fixed
from tests.integration.reports.test_reports_cache import LONG, off, pool, rate, text
from tests.pair import Pair


def count(pair: Pair, name: str, of: str = "target") -> float:
    """One counter of a worker, all labels together."""
    recorder = getattr(pair, of)._metrics._recorder
    return sum(v for (key, _), v in recorder.take_delta()["counters"].items() if key == name)


@pytest.mark.parametrize("gamma", [4, 8])
def test_b092_preempted_with_candidates_in_flight(tiny: Any, gamma: int) -> None:
    """B092: 12 blocks of 16 for three answers of 120 tokens; they are equal, and as plain."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=120, ignore_eos=True)
    small = {**pool(tiny, 12), "prefix_cache": False}
    pair = Pair(tiny, tiny, speculation=fixed(gamma), target=small, draft=LONG)
    answers = pair.generate([prompt] * 3, max_tokens=120, ignore_eos=True)
    assert [a.tokens for a in answers] == [plain] * 3
    assert count(pair, "specdist_preemptions") > 0
    for answer in answers:
        check_accounts(pair, answer, 120)
    drain(pair)
    assert pair.target_engine.usage().num_held == 0


def test_b093_one_answer_larger_than_the_pool(tiny: Any) -> None:
    """B093: 4 blocks; it ends with "length" and what it has, others are served."""
    prompts = [text(14), text(9, 1)]
    plain = off(tiny, prompts, max_tokens=200, ignore_eos=True)
    pair = Pair(tiny, tiny, speculation=fixed(4), target=pool(tiny, 4), draft=LONG)
    long, short = pair_open(pair, prompts[:1], max_tokens=200, ignore_eos=True) + pair_open(
        pair, prompts[1:], max_tokens=8, ignore_eos=True
    )
    pair.run(max_steps=300)  # no endless prefill
    assert (long.finish_reason, short.finish_reason) == ("length", "length")
    assert short.tokens == plain[1][:8]
    assert long.tokens == plain[0][: len(long.tokens)] and 64 - 14 - 5 <= len(long.tokens) <= 51
    (again,) = pair.generate(prompts[:1], max_tokens=8)
    assert again.tokens == plain[0][:8]


def test_b096_draft_memory_comes_back(tiny: Any) -> None:
    """B096: six long prompts one after the other, a draft pool for two; the last is as good."""
    draft = pool(tiny, 2 * 27)
    pair = Pair(tiny, tiny, speculation=fixed(4), target=LONG, draft=draft)
    rates = []
    for seed in range(6):
        (answer,) = pair.generate([text(400, seed)], max_tokens=21, ignore_eos=True, draft_steps=20)
        rates.append((rate(answer), answer.num_draft_tokens))
    assert rates == [(1.0, rates[0][1])] * 6 and rates[0][1] > 10
    drain(pair)
    assert pair.draft_engine.usage().num_held == 0


@pytest.mark.parametrize("num_blocks", [4, 27])
def test_b096_draft_pool_smaller_than_the_prompts(tiny: Any, num_blocks: int) -> None:
    """B096: what the draft cannot hold is answered without it; the draft lives on."""
    prompts = [text(400, seed) for seed in range(3)]
    plain = off(tiny, prompts, max_tokens=20, ignore_eos=True)
    pair = Pair(tiny, tiny, speculation=fixed(4), target=LONG, draft=pool(tiny, num_blocks))
    answers = pair.generate(prompts, max_tokens=20, ignore_eos=True, draft_steps=20)
    assert [a.tokens for a in answers] == plain
    assert count(pair, "specdist_draft_trouble", "draft") > 0
    (short,) = pair.generate([text(14)], max_tokens=12, ignore_eos=True)
    assert rate(short) == 1.0


def failing(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    def explode(batch: object) -> None:
        raise torch.OutOfMemoryError("simulated")

    patch.setattr(engine._runner, "forward", explode)


def test_b099_target_out_of_memory_fails_one_batch(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B099: the batch of that step ends with an error, those that wait and come are served."""
    prompts = [text(14), text(20, 1), text(9, 2)]
    plain = off(tiny, prompts, max_tokens=12)
    pair = Pair(tiny, tiny, speculation=fixed(4), target={**LONG, "max_num_sequences": 2})
    answers = pair_open(pair, prompts, max_tokens=12)
    for _ in range(2):
        pair.draft.step()
        pair.target.step()
    with monkeypatch.context() as patch:
        failing(pair.target_engine, patch)
        pair.target.step()
    assert [a.finish_reason for a in answers] == ["error", "error", None]
    assert all("simulated" in a.verdicts[-1].error for a in answers[:2])
    pair.run()
    assert answers[2].tokens == plain[2]
    assert [a.tokens for a in pair.generate(prompts[:2], max_tokens=12)] == plain[:2]
    drain(pair)
    assert pair.target_engine.usage().num_held == pair.draft_engine.usage().num_held == 0


def test_b099_draft_out_of_memory_costs_only_its_candidates(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B099: the answers in that step go on without the draft, later ones with it."""
    prompts = [text(14), text(20, 1)]
    plain = off(tiny, prompts, max_tokens=20, ignore_eos=True)
    pair = Pair(tiny, tiny, speculation=fixed(4))
    answers = pair_open(pair, prompts, max_tokens=20, ignore_eos=True)
    for _ in range(6):
        pair.draft.step()
    pair.target.step()
    with monkeypatch.context() as patch:
        failing(pair.draft_engine, patch)
        pair.draft.step()
    pair.run()
    assert [a.tokens for a in answers] == plain
    assert count(pair, "specdist_draft_trouble", "draft") == 2
    (later,) = pair.generate(prompts[:1], max_tokens=20, ignore_eos=True)
    assert later.tokens == plain[0] and rate(later) == 1.0


def test_b099_pools_are_sized_by_what_is_free_when_they_are_made(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B099: the second engine of a process sees what weights and first pool have left."""
    free = {"bytes": 4 << 20}
    monkeypatch.setattr(memory, "free_bytes", lambda device: free["bytes"])
    settings = EngineConfig(dtype="float32", kv_cache_fraction=0.5, max_num_sequences=10_000)
    first = Engine(tiny, settings)
    assert first.kv.num_bytes <= 2 << 20
    free["bytes"] -= first.kv.num_bytes
    second = Engine(tiny, settings)
    assert first.kv.num_bytes + second.kv.num_bytes <= 3 << 20
