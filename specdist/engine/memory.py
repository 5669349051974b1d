"""How much memory a KV cache may take: free bytes of a device, and blocks within a budget.

Knows no model; called by the engine once, after the weights are loaded, so that a second
model in the same process is counted.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from specdist.config import EngineConfig
from specdist.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Memory a new allocation may use: the device's, or the machine's within its cgroup."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _available_host_bytes()
    limit, current = CGROUP / "memory.max", CGROUP / "memory.current"
    # No cgroup v2 here, or no limit ("max"): the machine's own figure stands.
    with contextlib.suppress(OSError, ValueError):
        free = min(free, int(limit.read_text()) - int(current.read_text()))
    return max(free, 0)


def _available_host_bytes() -> int:
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # Half of the physical memory where the system does not tell what is available.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def num_blocks_for(
    config: EngineConfig, block_bytes: int, max_model_len: int, device: torch.device
) -> int:
    """Blocks within the budget, never more than the sequences could fill; ConfigError if none.

    A sequence's region may hold more rows than positions (siblings), hence one step's
    rows on top of the lengths.
    """
    if config.kv_cache_bytes is not None:
        budget, source = config.kv_cache_bytes, "kv_cache_bytes"
    else:
        free = free_bytes(device)
        budget = int(free * config.kv_cache_fraction)
        source = f"kv_cache_fraction {config.kv_cache_fraction} of {free} free bytes"
    affordable = budget // block_bytes
    if affordable < 1:
        raise ConfigError(
            f"the KV cache needs at least {block_bytes} bytes for one block of "
            f"{config.block_size} tokens, but {source} gives {budget} bytes"
        )
    per_sequence = -(-max_model_len // config.block_size) + 1
    useful = config.max_num_sequences * per_sequence
    useful += -(-config.max_step_tokens // config.block_size)
    return min(affordable, useful)
