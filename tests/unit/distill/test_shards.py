"""Shards, cached states, the split and the batches: files that come back, choices that repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specdist.distill.batches import batches_from, epoch_batches, learnt_columns, make_batch
from specdist.distill.dataset import Item, is_held_out, load_dataset, snapshot, subset
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.shards import (
    Example,
    first_missing,
    group_of,
    num_answer_tokens,
    read_shard,
    shard_path,
    write_shard,
)
from specdist.errors import ConfigError


def example(length: int, start: int, group: int = 0, kind: str = "k") -> Example:
    return Example(np.arange(length, dtype=np.int64), start, 0.5, kind, group, True, 1 << 61)


EXAMPLES = [example(9, 4, -5, "a"), example(5, 2, 7, "b"), example(12, 11, 9, "a")]


def about(digest: str = "d") -> dict[str, str]:
    return {"settings": digest}


@pytest.mark.parametrize("vocab_size", [300, 49_152, 70_000, 256_000])
def test_shards_come_back(tmp_path: Path, vocab_size: int) -> None:
    path = shard_path(tmp_path, 3)
    tokens = np.array([0, vocab_size - 1, 5], np.int64)
    examples = [*EXAMPLES, EXAMPLES[0]._replace(tokens=tokens, answer_start=1, ended=False)]
    write_shard(path, examples, vocab_size, about())
    for before, after in zip(examples, read_shard(path, "d"), strict=True):
        assert np.array_equal(before.tokens, after.tokens)
        assert before[1:] == after[1:]
    assert num_answer_tokens(path) == sum(e.num_answer_tokens for e in examples)
    assert first_missing(tmp_path) == 0


def test_equal_shards_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / name, EXAMPLES, 300, {"settings": "x", "dropped": {}, "dtype": "y"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_foreign_and_damaged_shards_are_refused(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, EXAMPLES, 300, about("other"))
    with pytest.raises(ConfigError, match="made with settings other, those of this run are d"):
        read_shard(path, "d")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot read shard"):
        read_shard(path, "d")


def test_the_cache_keeps_its_budget_and_knows_its_answers(tmp_path: Path) -> None:
    states = [torch.randn(len(e.tokens) - 1, 4).half() for e in EXAMPLES]
    cache = HiddenCache(tmp_path, max_bytes=2000)
    assert cache.write(0, EXAMPLES, states)
    again = HiddenCache(tmp_path, max_bytes=2000)
    assert again.has(0, EXAMPLES)
    for index, wanted in enumerate(states):
        assert torch.equal(again.read(0, index), wanted)
    assert not again.has(0, EXAMPLES[:2]), "other answers"
    assert not HiddenCache(tmp_path, max_bytes=500).write(1, EXAMPLES, states)
    assert not cache.write(1, EXAMPLES, [*states[:2], states[2] * torch.inf]), "beyond the type"


def test_groups_stay_on_their_side() -> None:
    groups = [group_of(f"prompt {i}") for i in range(4000)]
    held_out = {g for g in groups if is_held_out(g, 0.1)}
    assert len(held_out) / 4000 == pytest.approx(0.1, abs=0.02)
    assert held_out <= {g for g in groups if is_held_out(g, 0.2)}


def items_of(lengths: list[int]) -> list[Item]:
    return [Item(0, i, example(n, n // 2, group_of(str(i)))) for i, n in enumerate(lengths)]


def test_a_training_keeps_to_the_shards_that_it_began_with(tmp_path: Path) -> None:
    examples = [item.example for item in items_of([10] * 40)]
    write_shard(shard_path(tmp_path, 0), examples, 300, about())
    shards = snapshot(tmp_path, tmp_path / "train")
    write_shard(shard_path(tmp_path, 1), examples, 300, about())
    assert snapshot(tmp_path, tmp_path / "train") == shards
    data = load_dataset(tmp_path, shards, "d", 0.2)
    assert len(data.training) + len(data.held_out) == 40
    assert data.prefix_len == 10, "the examples are alike"
    assert len(subset(data, 0.5).training) == round(len(data.training) / 2)
    write_shard(shard_path(tmp_path, 0), examples[:5], 300, about())
    with pytest.raises(ConfigError, match="is not the shard that this training began with"):
        load_dataset(tmp_path, shards, "d", 0.2)


def test_an_epoch_holds_every_answer_once_in_batches_of_like_length() -> None:
    items = items_of([int(n) for n in np.random.default_rng(0).integers(4, 200, 100)])
    batches = epoch_batches(items, 400, seed=1, epoch=0)
    assert sorted(i.place for b in batches for i in b) == list(range(100))
    for batch in batches:
        longest = max(len(i.example.tokens) for i in batch)
        assert len(batch) == 1 or longest * len(batch) <= 400
    padded = sum(len(b) * max(len(i.example.tokens) for i in b) for b in batches)
    assert padded < 1.25 * sum(len(i.example.tokens) for i in items)
    assert batches == epoch_batches(items, 400, seed=1, epoch=0)
    assert batches != epoch_batches(items, 400, seed=1, epoch=1)


def test_going_on_gives_the_same_batches() -> None:
    items = items_of([20] * 30)
    whole = batches_from(items, 100, 0, 0)
    first = [next(whole) for _ in range(20)]
    later = batches_from(items, 100, 0, 13)
    assert [next(later) for _ in range(7)] == first[13:]


def test_positions_that_are_learnt_from() -> None:
    item = Item(0, 0, example(20, 10))
    rng = np.random.default_rng(0)
    assert learnt_columns(item, 0, 4, 0.0, rng).tolist() == list(range(9, 19))
    assert learnt_columns(item, 0, 4, 1.0, rng).tolist() == list(range(3, 19))
    assert learnt_columns(item, 12, 4, 1.0, rng).tolist() == list(range(12, 19))
    num = [len(learnt_columns(item, 0, 1, 0.3, rng)) - 10 for _ in range(2000)]
    assert np.mean(num) == pytest.approx(0.3 * 9, rel=0.1)


def test_a_batch_puts_each_state_beside_its_position() -> None:
    items = items_of([6, 4])
    states = [torch.arange(5.0)[:, None], torch.arange(10.0, 12.0)[:, None]]  # the second: last 2
    batch = make_batch(items, states, 0, 1.0, np.random.default_rng(0))
    assert batch.inputs.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]
    places = list(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True))
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
    assert batch.states[:, 0].tolist() == [0, 1, 2, 3, 4, 10, 11]
