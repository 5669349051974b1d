"""The models of an evaluation: found and checked before anything is loaded, then as engines.

Called by ``eval_draft``, ``eval_runs`` and ``benchmarks/offline_vs_served.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdist.config import EngineConfig
from specdist.distill.eval_acceptance import ObservedEngine
from specdist.distill.eval_settings import DraftSpec, EvalSettings
from specdist.engine.loader import load_model
from specdist.engine.memory import free_bytes
from specdist.errors import ConfigError
from specdist.models.pair import PairReport, check_pair
from specdist.models.progress import Progress
from specdist.models.resolve import resolve_model

MEMORY_SHARE = 0.6  # of the free memory that one KV cache may take


@dataclass(frozen=True)
class Checked:
    """A model folder that fits the target."""

    folder: Path
    pair: PairReport


def check_models(
    specs: Sequence[DraftSpec], settings: EvalSettings, progress: Progress
) -> tuple[Checked, dict[str, Checked]]:
    """The target (held against itself) and the drafts' models by name; raises ModelError."""
    folder = resolve_model(settings.target, progress)
    target = Checked(folder, check_pair(folder, folder))
    drafts: dict[str, Checked] = {}
    for name in dict.fromkeys(spec.model for spec in specs):
        if name is not None:
            draft = resolve_model(name, progress)
            drafts[name] = Checked(draft, check_pair(folder, draft))
    return target, drafts


def load_engine(
    model: Checked, settings: EvalSettings, num_kv_tokens: int, is_draft: bool
) -> ObservedEngine:
    """The model with room for ``num_kv_tokens``; ids that a draft must not propose are masked."""
    config = settings.engine
    loaded = load_model(model.folder, config.device, config.dtype, config.num_threads)
    config = _with_room(config, num_kv_tokens * loaded.kv_shape.token_bytes, loaded.device)
    masked = model.pair.masked_ids if is_draft else ()
    return ObservedEngine(loaded, config, model.pair.vocab_size, masked)


def _with_room(config: EngineConfig, num_bytes: int, device: torch.device) -> EngineConfig:
    free = free_bytes(device)
    if num_bytes > MEMORY_SHARE * free:
        raise ConfigError(
            f"the KV cache for {config.max_num_sequences} answers at a time needs "
            f"{num_bytes / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free: "
            "lower concurrency or max_tokens"
        )
    return replace(config, kv_cache_bytes=num_bytes)
