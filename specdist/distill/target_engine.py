"""The target as the answers phase drives it: tokenizer, engine and what names them.

The engine's logits end where the target's vocabulary ends, as in the service. Called by
``pipeline`` and ``estimate``; used by ``answers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdist.api.tokenizer import Tokenizer
from specdist.config import EngineConfig
from specdist.distill.answering import Answering
from specdist.distill.chat_opening import ChatOpening, find_opening
from specdist.distill.settings import DistillSettings
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model
from specdist.models.pair import check_pair

KV_FRACTION = 0.4


@dataclass(frozen=True)
class TargetEngine:
    """What answers, and how text becomes tokens for it."""

    tokenizer: Tokenizer
    opening: ChatOpening | None
    answering: Answering
    vocab_size: int
    max_prompt_tokens: int
    dtype: str


def open_target(folder: Path, settings: DistillSettings) -> TargetEngine:
    """Load the target for answering; raises ModelError when it cannot be used."""
    report = check_pair(folder, folder)
    longest = settings.max_prompt_tokens + settings.max_new_tokens[-1]
    config = EngineConfig(
        model=str(folder),
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads,
        max_num_sequences=settings.batch_size,
        max_model_len=min(longest, report.target_max_len),
        kv_cache_fraction=KV_FRACTION,
    )
    loaded = load_model(folder, config.device, config.dtype, config.num_threads)
    engine = Engine(loaded, config, report.vocab_size, report.masked_ids)
    tokenizer = Tokenizer.load(folder)
    return TargetEngine(
        tokenizer=tokenizer,
        opening=find_opening(tokenizer),
        answering=Answering(engine, loaded, keep_hidden=settings.cache_bytes > 0),
        vocab_size=report.vocab_size,
        max_prompt_tokens=min(settings.max_prompt_tokens, engine.max_model_len - 1),
        dtype=str(loaded.dtype).removeprefix("torch."),
    )
