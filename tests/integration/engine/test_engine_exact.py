"""Whatever the history, the engine's logits and KV are those of one plain forward pass."""

from __future__ import annotations

import pytest
import torch

from specdist.config import EngineConfig
from specdist.engine.engine import Engine
from specdist.engine.sequence import Rows, chain_rows
from tests.integration.engine.engine_rig import (
    VOCAB,
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
from tests.tiny_models import KINDS

# A root row, then two children with two children each (B082), and their parents.
TREE = ([5, 11, 12, 21, 22, 23, 24], [-1, 0, 0, 1, 1, 2, 2])


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(TREE[1][node]), node]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_prefill_then_decode_is_one_forward_pass(kind: str, block_size: int) -> None:
    engine = make_engine(kind, block_size=block_size, num_blocks=128)
    tokens = text(30)
    seq = engine.open("a", tokens[:13])
    logits = [compute(engine, seq)]
    for token in tokens[13:]:
        seq.tokens.append(token)
        logits.append(compute(engine, seq))
        engine.check_integrity()
    assert close(torch.cat(logits), truth(tokens, kind))
    assert engine.usage().num_held == -(-len(tokens) // block_size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 8, 40, 64])
def test_chunked_prefill(kind: str, chunk: int) -> None:
    """B090, B038: any chunk gives the same logits and KV, windows shorter than the text too."""
    engine, tokens = make_engine(kind), text(70)
    seq = engine.open("a", tokens)
    assert close(compute(engine, seq, chunk), truth(tokens, kind))
    assert close(kv_of(engine, seq), fresh_kv(tokens, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", [1, 6, 20])
def test_each_path_of_a_tree_is_that_path_alone(kind: str, prefix: int) -> None:
    """B081, B082: siblings share a position, a row sees its ancestors only."""
    engine, tokens = make_engine(kind), text(prefix)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    logits = grow(engine, seq, *TREE)
    assert seq.region_depths == [0, 1, 1, 2, 2, 2, 2]
    for node in range(len(TREE[0])):
        path = path_to(node)
        alone = truth(tokens + [TREE[0][row] for row in path], kind)
        assert close(logits[path], alone[prefix:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_grown_over_several_passes(kind: str) -> None:
    """The draft's way: frontier nodes come later, ancestors' KV is in the region already."""
    engine, tokens = make_engine(kind), text(11)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    parts = [
        grow(engine, seq, TREE[0][a:b], TREE[1][a:b]) for a, b in [(0, 1), (1, 3), (3, 4), (4, 7)]
    ]
    logits = torch.cat(parts)
    for node in range(len(TREE[0])):
        path = path_to(node)
        alone = truth(tokens + [TREE[0][row] for row in path], kind)
        assert close(logits[path], alone[11:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("end", "keep"), [(-1, [0, 2, 6]), (0, [2, 5]), (2, [5, 6]), (6, [])])
def test_settle_moves_the_accepted_path(
    kind: str, block_size: int, end: int, keep: list[int]
) -> None:
    """Committed KV, kept rows and everything decoded later equal a fresh prefill."""
    engine, tokens = make_engine(kind, block_size=block_size, num_blocks=64), text(9)
    seq = engine.open("a", tokens)
    compute(engine, seq)
    grow(engine, seq, *TREE)
    path = path_to(end)
    seq.tokens += [TREE[0][row] for row in path]
    engine.settle(seq, path, keep)
    engine.check_integrity()
    assert seq.num_computed == 9 + len(path)
    assert close(kv_of(engine, seq), fresh_kv(seq.tokens, kind))
    if keep:  # grow on below the last kept row
        last = len(keep) - 1
        logits = grow(engine, seq, [31], [last])
        branch = seq.tokens + [TREE[0][row] for row in path_to(keep[last]) if row not in path]
        assert close(logits[0], truth([*branch, 31], kind)[-1])
        engine.settle(seq, [])
    seq.tokens.append(41)
    assert close(compute(engine, seq)[-1], truth(seq.tokens, kind)[-1])
    assert engine.usage().num_held == -(-len(seq.tokens) // block_size)


@pytest.mark.parametrize("kind", KINDS)
def test_batched_is_single(kind: str) -> None:
    """Prefill, decode, verification and draft growth in one pass do not see each other."""
    engine = make_engine(kind, num_blocks=128)
    prompts = {
        name: text(length, seed)
        for seed, (name, length) in enumerate(
            [("decode", 12), ("tree", 7), ("prefill", 50), ("chunk", 20)]
        )
    }
    seqs = {name: engine.open(name, tokens) for name, tokens in prompts.items()}
    compute(engine, seqs["decode"])
    compute(engine, seqs["tree"])
    seqs["chunk"].tokens = prompts["chunk"][:8]
    compute(engine, seqs["chunk"])
    for seq, rows in zip(seqs.values(), (1, 7, 50, 12), strict=True):
        assert engine.reserve(seq, rows)
    (
        decode,
        tree,
        prefill,
        chunk,
    ) = engine.forward(
        [
            Rows(seqs["decode"], [9], [-1], [0]),
            Rows(seqs["tree"], *TREE, [0, 4]),
            chain_rows(seqs["prefill"], prompts["prefill"], [49]),
            chain_rows(seqs["chunk"], prompts["chunk"][8:]),
        ]
    )
    assert close(decode[0], truth([*prompts["decode"], 9], kind)[-1])
    assert close(tree[1], truth([*prompts["tree"], 5, 11, 22], kind)[-1])
    assert close(prefill[0], truth(prompts["prefill"], kind)[-1])
    assert chunk.shape == (0, VOCAB)


@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_scattered_blocks(num_rows: int) -> None:
    """Runs that are not contiguous give the same, for a few rows and for long chunks."""
    engine, tokens = make_engine(num_blocks=40, block_size=2), text(20 + num_rows)
    others = [engine.open(f"o{i}", text(2, i)) for i in range(40)]
    for other in others:
        assert engine.reserve(other, 2)
    for other in others[::2]:
        engine.close(other.session_id)
    seq = engine.open("a", tokens)
    for other in others[1::4]:
        engine.close(other.session_id)
    first = compute(engine, engine.get("a"), 20) if num_rows == 40 else None
    if first is None:
        seq.tokens = tokens[:20]
        compute(engine, seq)
        first = grow(engine, seq, tokens[20:], [-1, *range(num_rows - 1)])
    assert len(seq.block_table) > 5
    assert seq.block_table != list(range(seq.block_table[0], seq.block_table[-1] + 1))
    assert close(first[-num_rows:], truth(tokens)[-num_rows:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_stays_near(dtype: torch.dtype) -> None:
    from specdist.engine.loader import prepare
    from tests.tiny_models import build_tiny

    model = prepare(build_tiny("qwen3", vocab_size=VOCAB).to(dtype))
    engine, tokens = Engine(model, EngineConfig(kv_cache_bytes=1 << 20)), text(40)
    seq = engine.open("a", tokens)
    logits = compute(engine, seq, 7)
    expected = truth(tokens, "qwen3")
    assert logits.dtype == torch.float32
    assert float((logits - expected).norm() / expected.norm()) < 0.05


def test_logits_are_cut_or_widened_to_the_wanted_vocabulary() -> None:
    """B001, B002, B005: padding columns go, unknown ids get probability 0, in one place."""
    tokens, config = text(6), EngineConfig(kv_cache_bytes=1 << 20)
    for width in (90, 100):
        engine = Engine(loaded("llama"), config, vocab_size=width)
        logits = compute(engine, engine.open("a", [t % 80 for t in tokens]))
        assert logits.shape == (6, width)
        assert bool((logits[:, VOCAB:] == -torch.inf).all())
