"""How much memory a model needs on its device, from its config and file headers.

An estimate made before anything is loaded: weights, and KV cache bytes for each token.
Knows no pair. Called by ``specdist check``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdist.config import EngineConfig
from specdist.errors import ModelError
from specdist.models.checkpoint import read_json, read_tensors, text_config
from specdist.models.pair import context_length

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}  # auto: at most float32
MEMINFO = Path("/proc/meminfo")


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
    size = DTYPE_BYTES[config.dtype]
    tensors = read_tensors(folder)
    weights = sum(tensor.num_elements for tensor in tensors.values()) * size
    per_token = _kv_elements_per_token(folder) * size
    free = free_bytes(config.device)
    kv_cache = config.kv_cache_bytes or int(config.kv_cache_fraction * max(free - weights, 0))
    need = MemoryNeed(weights, per_token, kv_cache, kv_cache // per_token, free)
    if need.total_bytes > free:
        raise ModelError(
            f"{folder} needs {_gib(weights)} for weights and {_gib(kv_cache)} for its KV cache, "
            f"{config.device} has {_gib(free)} free"
        )
    longest = context_length(folder, config.max_model_len)
    if need.num_kv_tokens < longest and config.max_model_len is not None:
        raise ModelError(
            f"{folder}: the KV cache of {_gib(kv_cache)} holds {need.num_kv_tokens} tokens, "
            f"max_model_len is {longest}"
        )
    return need


def _kv_elements_per_token(folder: Path) -> int:
    config = text_config(read_json(folder / "config.json"))
    heads = _positive(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or _positive(config, "hidden_size") // heads
    return 2 * _positive(config, "num_hidden_layers") * int(kv_heads) * int(head_dim)


def _positive(config: Any, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {name} must be at least 1, got {value!r}")
    return value


def free_bytes(device: str) -> int:
    """Memory that is free on a device now."""
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise ModelError(f"device {device!r}: this machine has no CUDA device")
        return int(torch.cuda.mem_get_info(device)[0])
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ModelError(f"{MEMINFO} does not say MemAvailable")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
