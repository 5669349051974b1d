"""Shared by the engine's integration tests: an engine over a tiny model, and the truth."""

from __future__ import annotations

from collections.abc import Sequence as Items
from functools import cache
from typing import Any

import torch

from specdist.config import EngineConfig
from specdist.engine.engine import Engine
from specdist.engine.loader import LoadedModel, prepare
from specdist.engine.sequence import Rows, Sequence, chain_rows
from tests.tiny_models import build_tiny

TOLERANCE = 1e-4
VOCAB = 96


@cache
def loaded(kind: str = "llama", **sizes: int) -> LoadedModel:
    torch.set_num_threads(1)
    return prepare(build_tiny(kind, vocab_size=VOCAB, **sizes))


@cache
def reference(kind: str = "llama", **sizes: int) -> Any:
    """The same weights with the library's own attention."""
    model = build_tiny(kind, vocab_size=VOCAB, **sizes)
    model.set_attn_implementation("eager")
    return model


@torch.inference_mode()
def truth(tokens: Items[int], kind: str = "llama", **sizes: int) -> torch.Tensor:
    """Logits of every position from one full forward pass of transformers."""
    return reference(kind, **sizes)(input_ids=torch.tensor([list(tokens)])).logits[0].float()


def make_engine(kind: str = "llama", *, num_blocks: int = 64, **settings: Any) -> Engine:
    model = loaded(kind)
    size = settings.setdefault("block_size", 4)
    return Engine(
        model,
        EngineConfig(kv_cache_bytes=num_blocks * size * model.kv_shape.token_bytes, **settings),
    )


def text(length: int, seed: int = 0) -> list[int]:
    """Token ids without short repeats."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def compute(engine: Engine, seq: Sequence, chunk: int = 10**6) -> torch.Tensor:
    """Compute all uncomputed committed tokens in chunks; the logits of all of them."""
    found = []
    while seq.num_uncomputed:
        new = seq.tokens[seq.num_computed : seq.num_computed + chunk]
        assert engine.reserve(seq, len(new))
        found += engine.forward([chain_rows(seq, new, range(len(new)))])
        engine.settle(seq, range(len(new)))
    return torch.cat(found)


def grow(engine: Engine, seq: Sequence, tokens: Items[int], parents: Items[int]) -> torch.Tensor:
    """Add region rows and return the logits of all of them."""
    assert engine.reserve(seq, len(tokens))
    return engine.forward([Rows(seq, tokens, parents, range(len(tokens)))])[0]


def kv_of(engine: Engine, seq: Sequence) -> torch.Tensor:
    """The KV of the committed tokens, in order."""
    size = engine.block_size
    slots = [seq.block_table[i // size] * size + i % size for i in range(seq.num_computed)]
    return engine.kv.read(slots)


def fresh_kv(tokens: Items[int], kind: str = "llama") -> torch.Tensor:
    """The KV of a plain prefill in an engine of its own."""
    engine = make_engine(kind, num_blocks=128)
    seq = engine.open("fresh", tokens)
    compute(engine, seq)
    return kv_of(engine, seq)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) < TOLERANCE
