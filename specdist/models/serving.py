"""The engines of a served pair: models resolved, checked against each other, loaded.

Called by the deployments when a replica starts, and by tools that run the pair in one
process. The pair is checked before any weights are read: a draft that does not belong to
the target is refused at start-up, never served slowly.
"""

from __future__ import annotations

import logging

from specdist.config import AppConfig
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model
from specdist.grammar import Grammars
from specdist.models.pair import PairReport, check_pair, eos_ids
from specdist.models.resolve import resolve_model

logger = logging.getLogger(__name__)


def check_configured_pair(config: AppConfig) -> PairReport:
    """The report on the configured pair; raises ModelError when it does not fit.

    Without a draft model (``drafters: [ngram]``) the target is held against itself, which
    checks its own files.
    """
    target = resolve_model(config.target.model)
    draft = resolve_model(config.draft.model) if uses_draft_model(config) else target
    report = check_pair(target, draft, config.target.max_model_len, config.draft.max_model_len)
    for warning in report.warnings:
        logger.warning("%s", warning)
    return report


def uses_draft_model(config: AppConfig) -> bool:
    """Whether a model drafts at all."""
    return "draft_model" in config.speculation.drafters


def build_target_engine(config: AppConfig) -> Engine:
    """The target's engine; its logits end where its vocabulary ends."""
    report = check_configured_pair(config)
    settings = config.target
    loaded = load_model(
        resolve_model(settings.model), settings.device, settings.dtype, settings.num_threads
    )
    return Engine(loaded, settings, report.vocab_size)


def build_draft_engine(config: AppConfig) -> Engine | None:
    """The draft's engine, None when no model drafts; ids that differ are masked."""
    if not uses_draft_model(config):
        return None
    report = check_configured_pair(config)
    settings = config.draft
    loaded = load_model(
        resolve_model(settings.model), settings.device, settings.dtype, settings.num_threads
    )
    return Engine(loaded, settings, report.vocab_size, report.masked_ids)


def build_grammars(config: AppConfig) -> Grammars:
    """The grammars of structured output, over the target's vocabulary, ready to compile.

    The draft's replicas use them too: its token ids mean the same, and the target's
    end-of-sequence tokens count.
    """
    folder = resolve_model(config.target.model)
    path = folder / "tokenizer.json"
    grammars = Grammars(lambda: path.read_text(encoding="utf-8"), eos_ids(folder))
    grammars.prepare()
    return grammars
