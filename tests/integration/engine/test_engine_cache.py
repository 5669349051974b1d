"""Prefix reuse, preemption, limits and the errors of wrong use."""

from __future__ import annotations

import pytest
import torch

from specdist.config import EngineConfig
from specdist.engine.engine import Engine
from specdist.engine.sequence import Rows
from specdist.errors import ConfigError, InternalError, InvalidRequestError
from tests.integration.engine.engine_rig import (
    close,
    compute,
    fresh_kv,
    grow,
    kv_of,
    loaded,
    make_engine,
    text,
    truth,
)


def test_a_prefix_is_reused_but_never_the_last_token() -> None:
    engine, tokens = make_engine(), text(16)
    first = engine.open("a", tokens)
    assert engine.attach_prefix(first) == 0
    compute(engine, first)
    for length, cached in ((16, 12), (14, 12), (4, 0), (3, 0)):
        seq = engine.open(f"b{length}", tokens[:length])
        assert engine.attach_prefix(seq) == seq.num_computed == cached
        assert close(compute(engine, seq), truth(tokens)[cached:length])
        engine.check_integrity()
    engine.close("a")
    other = engine.open("c", tokens[:8] + text(8, seed=5))
    assert engine.attach_prefix(other) == 8
    assert close(compute(engine, other)[-1], truth(other.tokens)[-1])


def test_only_committed_tokens_enter_the_prefix_cache() -> None:
    """Rejected rows fill whole blocks here and must never be found."""
    engine, tokens = make_engine(), text(4)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    guess = text(12, seed=3)
    grow(engine, seq, guess, [-1, *range(11)])
    seq.tokens += guess[:2]
    engine.settle(seq, [0, 1])
    probe = engine.open("b", tokens + guess)
    assert engine.attach_prefix(probe) == 4
    assert engine.usage().num_held == 2


def test_prefix_cache_can_be_turned_off() -> None:
    engine, tokens = make_engine(prefix_cache=False), text(16)
    compute(engine, engine.open("a", tokens))
    assert engine.attach_prefix(engine.open("b", tokens)) == 0
    engine.close("a")
    assert engine.usage().num_cached == 0


def test_cached_blocks_make_room_when_needed() -> None:
    engine = make_engine(num_blocks=6)
    for seed in range(5):
        seq = engine.open(f"s{seed}", text(20, seed))
        engine.attach_prefix(seq)
        assert close(compute(engine, seq), truth(seq.tokens))
        engine.close(seq.session_id)
        engine.check_integrity()
    assert engine.usage().num_held == 0


def test_preemption_and_recompute() -> None:
    """B092: after release everything is computed again, rejected rows are gone."""
    engine, tokens = make_engine(), text(11)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    grow(engine, seq, [5, 6, 7], [-1, 0, 0])
    seq.tokens += [5, 7]
    engine.settle(seq, [0, 2])
    grow(engine, seq, [8], [-1])
    engine.release(seq)
    assert engine.usage().num_held == 0 and not seq.region_tokens
    engine.attach_prefix(seq)
    compute(engine, seq, chunk=3)
    assert close(kv_of(engine, seq), fresh_kv([*tokens, 5, 7]))


@pytest.mark.parametrize("num_rows", [1, 2, 17])
def test_all_candidates_rejected_over_block_edges(num_rows: int) -> None:
    """B078, B091, B094: blocks in use are exactly those of the committed tokens."""
    engine, tokens = make_engine(), text(5)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    for step in range(20):
        seq.tokens.append(3 + step)
        root = seq.tokens[-1]
        logits = grow(engine, seq, [root, *text(num_rows, step)], [-1, *range(num_rows)])
        engine.settle(seq, [0])
        assert close(logits[0], truth(seq.tokens)[-1])
        assert seq.num_computed == len(seq.tokens)
        assert engine.usage().num_held == -(-len(seq.tokens) // 4)
    engine.check_integrity()


def test_an_exhausted_pool_says_no_and_changes_nothing() -> None:
    """B093: reserve returns False; nothing is lost, and giving back helps."""
    engine = make_engine(num_blocks=4)
    a, b = engine.open("a", text(8)), engine.open("b", text(4))
    assert engine.reserve(a, 8) and engine.reserve(b, 4)
    assert not engine.reserve(b, 12)
    assert len(b.block_table) == 1
    engine.close("a")
    assert engine.reserve(b, 12)
    engine.check_integrity()


def test_a_failed_forward_pass_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """B099: out of memory in one step leaves the sequence as it was."""
    engine, tokens = make_engine(), text(9)
    seq = engine.open("a", tokens)

    def explode(batch: object) -> None:
        raise torch.OutOfMemoryError("simulated")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "forward", explode)
        with pytest.raises(torch.OutOfMemoryError):
            compute(engine, seq)
    assert close(compute(engine, seq), truth(tokens))


def test_prompt_limits() -> None:
    """B070-B072, B093: what can never fit is refused with the numbers."""
    engine = make_engine(num_blocks=40, max_model_len=64)
    engine.open("63", text(63))
    for length in (64, 65):
        with pytest.raises(InvalidRequestError, match=f"64 tokens.*has {length}") as error:
            engine.open("x", text(length))
        assert error.value.code == "context_length_exceeded"
    small = make_engine(num_blocks=4)
    with pytest.raises(InvalidRequestError, match=r"17 tokens need 5 KV blocks of 4.*has 4"):
        small.open("x", text(17))
    with pytest.raises(InvalidRequestError, match="at least 1 token"):
        engine.open("x", [])
    for wrong in (96, -1):
        with pytest.raises(InvalidRequestError, match=f"between 0 and 95, got {wrong}"):
            engine.open("x", [wrong])


def test_positions_stay_within_the_context() -> None:
    engine = make_engine(max_model_len=8)
    seq = engine.open("a", text(7))
    compute(engine, seq)
    engine.reserve(seq, 4)
    grow(engine, seq, [3, 4], [-1, -1])  # siblings: more rows than positions is fine
    with pytest.raises(ValueError, match="position 8 is beyond the context of 8"):
        grow(engine, seq, [3], [0])


def test_memory_is_sized_once_and_refused_with_numbers() -> None:
    model = loaded("llama")
    with pytest.raises(ConfigError, match=r"at least \d+ bytes for one block of 16 tokens"):
        Engine(model, EngineConfig(kv_cache_bytes=100))
    with pytest.raises(ConfigError, match="at most the model's 512, got 513"):
        Engine(model, EngineConfig(max_model_len=513))
    engine = Engine(model, EngineConfig(max_num_sequences=2, max_step_tokens=16))
    assert engine.num_blocks == 2 * 33 + 1  # what two full sequences and a step could use


def test_wrong_use_is_named() -> None:
    engine = make_engine()
    seq = engine.open("a", text(5))
    with pytest.raises(InternalError, match="open already"):
        engine.open("a", [1])
    with pytest.raises(InternalError, match="5 slots needed, 0 reserved"):
        engine.forward([Rows(seq, seq.tokens, [-1, 0, 1, 2, 3], [])])
    compute(engine, seq)
    grow(engine, seq, [7, 8, 9], [-1, 0, 0])
    for path, keep in (([1], []), ([0, 3], []), ([0], [])):
        with pytest.raises(InternalError, match=r"not a child|not the committed"):
            engine.settle(seq, path, keep)
    for keep in ([1], [0, 2, 1], [5]):
        with pytest.raises(InternalError, match="out of order or has no parent"):
            engine.settle(seq, [], keep)
    with pytest.raises(InternalError, match="release it first"):
        engine.attach_prefix(seq)
    assert engine.reserve(seq, 1)
    with pytest.raises(ValueError, match="only once"):
        engine.forward([Rows(seq, [1], [-1], []), Rows(seq, [1], [-1], [])])
    with pytest.raises(ValueError, match="between -1 and 2, got 4"):
        engine.forward([Rows(seq, [1], [4], [])])
    engine.close("a")
    engine.close("a")
    with pytest.raises(InternalError, match="not open"):
        engine.forward([Rows(seq, [1], [-1], [])])
    assert engine.usage().num_held == 0
