"""How much memory a model needs on its device, from its config and file headers.

An estimate made before anything is loaded: weights, and the KV cache that the engine
would set aside by its own rule. Knows no pair. Called by ``specdist check``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdist.config import EngineConfig
from specdist.errors import ModelError
from specdist.models.checkpoint import read_json, read_tensors, text_config
from specdist.models.pair import context_length


@dataclass(frozen=True)
class MemoryNeed:
    """One model on one device; sizes in bytes."""

    weights_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int  # what the engine will set aside
    num_kv_tokens: int  # tokens that fit in it
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes


def memory_need(folder: Path, config: EngineConfig) -> MemoryNeed:
    """What this model needs with these settings; raises ModelError when it cannot fit."""
    import torch

    from specdist.engine.dtypes import resolve_dtype
    from specdist.engine.memory import free_bytes, num_blocks_for

    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {config.device!r}: this machine has no CUDA device")
    size = resolve_dtype(config.dtype, device).itemsize
    weights = sum(tensor.num_elements for tensor in read_tensors(folder).values()) * size
    per_token = _kv_elements_per_token(folder) * size
    longest = context_length(folder, config.max_model_len)
    free = free_bytes(device)
    budget = config.kv_cache_bytes or int(config.kv_cache_fraction * max(free - weights, 0))
    settings = dataclasses.replace(config, kv_cache_bytes=max(budget, 1))
    num_blocks = num_blocks_for(settings, per_token * config.block_size, longest, device)
    num_tokens = num_blocks * config.block_size
    need = MemoryNeed(weights, per_token, num_tokens * per_token, num_tokens, free)
    _check_room(folder, config, need, longest)
    return need


def _check_room(folder: Path, config: EngineConfig, need: MemoryNeed, longest: int) -> None:
    kv_cache = _gib(need.kv_cache_bytes)
    if need.total_bytes > need.free_bytes:
        raise ModelError(
            f"{folder} needs {_gib(need.weights_bytes)} for weights and {kv_cache} for its KV "
            f"cache, {config.device} has {_gib(need.free_bytes)} free"
        )
    if need.num_kv_tokens < longest and config.max_model_len is not None:
        raise ModelError(
            f"{folder}: the KV cache of {kv_cache} holds {need.num_kv_tokens} tokens, "
            f"max_model_len is {longest}"
        )


def _kv_elements_per_token(folder: Path) -> int:
    config = text_config(read_json(folder / "config.json"))
    heads = _positive(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or _positive(config, "hidden_size") // heads
    return 2 * _positive(config, "num_hidden_layers") * int(kv_heads) * int(head_dim)


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {name} must be at least 1, got {value!r}")
    return value


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
