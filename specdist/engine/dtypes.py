"""Which number type a model runs in; ``auto`` follows what the device multiplies natively.

See docs/decisions/0002-auto-dtype.md. Called by the loader.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch type of a setting's name."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cuda" or NATIVE_BF16_FLAGS & cpu_flags():
        return torch.bfloat16
    return torch.float32


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of this machine's processor; empty where the system hides them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
