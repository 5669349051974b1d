"""Group I in one process, on tiny models: counters that add up, and speculation that rests."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from specdist.config import SpeculationConfig
from specdist.engine.engine import Engine
from specdist.errors import ModelError
from specdist.models.pair import check_pair
from tests.integration.reports.real_target import pair_open
from tests.integration.reports.rigs import fixed, oracle, padded, scripted, wide
from tests.integration.reports.test_reports_cache import LONG, VOCAB, off, text
from tests.pair import Pair

SPEC = "specdist_spec_decode_num_"


@pytest.mark.parametrize("wrong_every", [0, 3, 1])
def test_b107_b110_counters_add_up(tiny: Any, wrong_every: int) -> None:
    """B107: 0 <= accepted / drafted <= 1 in every sample. B110: accepted + next = generated."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=64, ignore_eos=True)
    pair = scripted(tiny, oracle(5, [*prompt, *plain], wrong_every=wrong_every))
    (answer,) = pair_open(pair, [prompt], max_tokens=64, ignore_eos=True)
    totals: dict[str, float] = {}
    while answer.finish_reason is None:
        pair.draft.step()
        pair.target.step()
        delta = pair.target._metrics._recorder.take_delta()["counters"]
        sample = {name: value for (name, labels), value in delta.items() if not labels}
        drafted, accepted = (
            sample.get(f"{SPEC}draft_tokens", 0),
            sample.get(f"{SPEC}accepted_tokens", 0),
        )
        assert 0 <= accepted <= drafted
        for name, value in sample.items():
            totals[name] = totals.get(name, 0) + value
    assert totals["specdist_generation_tokens"] == len(answer.tokens) == 64
    assert totals[f"{SPEC}accepted_tokens"] + totals[f"{SPEC}steps"] in (64, 65)  # the last is cut
    assert (totals[f"{SPEC}accepted_tokens"] == 0) == (wrong_every == 1)


def rows_of(engine: Engine, patch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every forward pass from now on."""
    rows: list[int] = []
    forward = engine.forward

    def counted(items: Any) -> Any:
        rows.append(sum(len(item.tokens) for item in items))
        return forward(items)

    patch.setattr(engine, "forward", counted)
    return rows


def test_b112_off_costs_nothing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B112: 16 answers with the mode off: the very rows of no draft at all, no draft step."""
    prompts = [text(14, seed) for seed in range(16)]
    rows = {}
    for draft in (None, tiny):
        mode = SpeculationConfig(mode="off")
        pair = Pair(tiny, draft, speculation=mode, target=LONG)
        rows[draft is None] = rows_of(pair.target_engine, monkeypatch)
        drafted = rows_of(pair.draft_engine, monkeypatch) if pair.draft_engine else []
        options = {"max_tokens": 12, "speculate": draft is not None}
        answers = pair.generate(prompts, ignore_eos=True, **options)
        assert not drafted and not any(a.num_draft_tokens for a in answers)
    assert rows[True] == rows[False]


def test_b113_useless_draft_is_dropped_soon(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B113: within 10 steps at the floor; few more rows than without a draft."""
    pair = scripted(
        tiny, lambda _, committed: [3, 3, 3, 3], speculation=SpeculationConfig(mode="adaptive"),
        target=LONG,
    )  # fmt: skip
    rows = rows_of(pair.target_engine, monkeypatch)
    (answer,) = pair.generate([text(14)], max_tokens=150, ignore_eos=True)
    drafted = [v.num_draft_tokens for v in answer.verdicts]
    wrong = [v for v in answer.verdicts if v.num_draft_tokens and not v.num_accepted]
    assert len(wrong) > 2 and max(drafted[1:4]) > 0
    assert not any(drafted[10:20])
    probes = [n for n in drafted[20:] if n]  # now and then, so that a better draft is noticed
    assert len(probes) <= 15 and max(probes) <= 4
    # By the steady cost model of these tests: 10 ms a step, 0.5 ms a row.
    cost = pair.target._choice.cost
    spent = sum(cost.step_s(n) for n in rows[1:])
    assert spent <= 1.3 * cost.step_s(1) * (len(answer.tokens) - 1)


@pytest.mark.parametrize("kind", ["alternating", "good"])
def test_b113_changing_draft_does_not_flap(tiny: Any, kind: str) -> None:
    """B113: good and bad by turns of five steps: at most one change in a window of five."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=150, ignore_eos=True)
    sure = oracle(4, [*prompt, *plain])
    steps = iter(range(10_000))

    def propose(session_id: str, committed: list[int]) -> list[int]:
        good = kind == "good" or next(steps) // 5 % 2 == 0
        return sure(session_id, committed) if good else [3, 3, 3, 3]

    settings = SpeculationConfig(mode="adaptive")
    pair = scripted(tiny, propose, speculation=settings, target=LONG)
    (answer,) = pair.generate([prompt], max_tokens=150, ignore_eos=True)
    assert answer.tokens == plain
    used = [v.num_draft_tokens > 0 for v in answer.verdicts[1:-1]]
    changes = [i for i in range(1, len(used)) if used[i] != used[i - 1]]
    assert all(b - a >= 5 for a, b in itertools.pairwise(changes))
    if kind == "good":
        assert all(used)


def test_b001_b009_draft_with_more_ids_than_the_target(tiny: Any) -> None:
    """B001, B009: one extra token of the draft, or 128 rows, with the largest logit of all."""
    prompt = text(14)
    plain = off(tiny, [prompt], max_tokens=20, ignore_eos=True)
    for rows in (1, 128):
        for rule in ("coupled", "rejection"):
            pair = Pair(tiny, padded(tiny, rows), speculation=fixed(4))
            (answer,) = pair.generate([prompt], max_tokens=20, ignore_eos=True, rule=rule)
            assert [answer.tokens] == plain and answer.num_accepted > 12


def test_b007_masked_ids_are_never_offered(tiny: Any) -> None:
    """B007, B009: ids that mean another text in the draft are masked there."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=20, ignore_eos=True)
    masked = sorted({plain[3], plain[7]})
    pair = Pair(tiny, tiny, speculation=wide(3, 8))
    pair.draft_engine._runner = Engine(
        tiny, pair.config.draft, VOCAB, masked
    )._runner  # as build_draft_engine does with the pair's report
    offered: list[int] = []
    offer = pair.target.offer

    def spy(offers: Any) -> None:
        offered.extend(t for tree in offers.trees for t in tree.tokens)
        offer(offers)

    pair.target.offer = spy  # type: ignore[method-assign]
    pair.draft._lookup = None
    (answer,) = pair.generate([prompt], max_tokens=20, ignore_eos=True)
    assert answer.tokens == plain and answer.num_accepted > 5
    assert offered and not set(masked) & set(offered)


def test_b003_b006_other_tokenizer_is_refused(demo_target_folder: Path, tmp_path: Path) -> None:
    """B006: a draft that would split "Ω" otherwise is refused; B003: by name and first id."""
    other = tmp_path / "draft"
    other.mkdir()
    for file in demo_target_folder.iterdir():
        if file.name != "tokenizer.json":
            (other / file.name).symlink_to(file)
    tokenizer = (demo_target_folder / "tokenizer.json").read_text(encoding="utf-8")
    # The same tokens under other ids: two ordinary ones change places.
    swapped = tokenizer.replace('"ha":', '"\\u0000":').replace('"Ġha":', '"ha":')
    swapped = swapped.replace('"\\u0000":', '"Ġha":')
    assert swapped != tokenizer
    (other / "tokenizer.json").write_text(swapped, encoding="utf-8")
    with pytest.raises(ModelError, match=r"do not share a vocabulary.*token id 421") as caught:
        check_pair(demo_target_folder, other)
    assert caught.value.message.count("49152") == 2
