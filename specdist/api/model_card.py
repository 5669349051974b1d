"""What the API must know of the model that is served: names, limits, tokenizer, rules.

Made once at start-up by ``deployments``; read by validation, the pages and GetModelInfo.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from specdist.api.tokenizer import Tokenizer
from specdist.config import LOSSLESS_RULES, RULES, RulesConfig
from specdist.errors import ModelError
from specdist.grammar import Grammars


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The served model, as its users see it."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int  # prompt and answer together
    vocab_size: int  # token ids are below it
    rules: RulesConfig = field(default_factory=RulesConfig)
    default_max_tokens: int | None = None  # None: what the context still holds
    created: int = field(default_factory=lambda: int(time.time()))
    grammars: Grammars = field(init=False, compare=False)  # of structured output

    def __post_init__(self) -> None:
        if self.max_model_len < 2:
            raise ModelError(f"max_model_len must be at least 2, got {self.max_model_len}")
        if self.vocab_size < 1:
            raise ModelError(f"vocab_size must be at least 1, got {self.vocab_size}")
        grammars = Grammars(self.tokenizer.to_json, self.tokenizer.eos_token_ids)
        object.__setattr__(self, "grammars", grammars)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        name: str,
        max_model_len: int,
        vocab_size: int | None = None,
        rules: RulesConfig | None = None,
        default_max_tokens: int | None = None,
    ) -> ModelCard:
        """Read the tokenizer of a model folder; None: the tokenizer's vocabulary."""
        tokenizer = Tokenizer.load(folder)
        return cls(
            name=name,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            vocab_size=vocab_size or tokenizer.vocab_size,
            rules=rules or RulesConfig(),
            default_max_tokens=default_max_tokens,
        )

    @property
    def allowed_rules(self) -> tuple[str, ...]:
        """Verification rules that a request may name."""
        return RULES if self.rules.allow_lossy else LOSSLESS_RULES

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end an answer."""
        return self.tokenizer.eos_token_ids
