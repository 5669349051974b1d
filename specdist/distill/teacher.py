"""The target as a teacher: its states for every answer, and its laws out of them.

States come from the cache beside the shards; what is not there is computed by a plain
transformers forward pass, and kept while the budget lasts. Called by ``train``,
``agreement`` and ``student``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from specdist.distill.batches import pad
from specdist.distill.dataset import Dataset, Item
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.logit_rule import check_rule, rule_of
from specdist.distill.progress import Progress, silent
from specdist.engine.dtypes import resolve_dtype

PASS_TOKENS = 4096  # of one forward pass, padding included
PHASE = "teacher"


class Teacher:
    """The target model with the cache of its states."""

    def __init__(self, folder: Path, device: str, dtype: str, cache: HiddenCache) -> None:
        self.device = torch.device(device)
        self.dtype = resolve_dtype(dtype, self.device)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=self.dtype, use_safetensors=True, trust_remote_code=False
        )
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self.rule = rule_of(self.config)
        check_rule(self.model, self.rule)
        self._cache = cache
        self._known: set[int] = set()

    @property
    def head(self) -> Any:
        """The linear layer that makes logits of states."""
        return self.model.get_output_embeddings()

    @property
    def width(self) -> int:
        """Elements of a state."""
        return int(self.head.in_features)

    def prepare(self, dataset: Dataset, progress: Progress = silent) -> None:
        """Compute and keep the states that the cache lacks, while its budget lasts."""
        for done, (shard, examples) in enumerate(dataset.shards.items()):
            if self._cache.has(shard, examples):
                self._known.add(shard)
                continue
            progress(PHASE, done, len(dataset.shards), "shards")
            size = sum(len(e.tokens) - 1 for e in examples) * self.width
            if self._cache.has_room(shard, size):
                states = [_small(s) for s in self.compute([e.tokens for e in examples])]
                if self._cache.write(shard, examples, states):
                    self._known.add(shard)
        progress(PHASE, len(dataset.shards), len(dataset.shards), "shards")

    def states_of(self, items: Sequence[Item]) -> list[Tensor]:
        """States of answers, of the last positions of each (see ``hidden_cache``)."""
        fresh = [item for item in items if item.shard not in self._known]
        computed = iter(self.compute([item.example.tokens for item in fresh]))
        return [
            self._cache.read(item.shard, item.place).to(self.device)
            if item.shard in self._known
            else next(computed)
            for item in items
        ]

    @torch.no_grad()
    def compute(self, sequences: Sequence[np.ndarray]) -> list[Tensor]:
        """States at all tokens but the last, by forward passes over like lengths."""
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        found: dict[int, Tensor] = {}
        while order:
            size = max(1, PASS_TOKENS // len(sequences[order[0]]))
            now, order = order[:size], order[size:]
            inputs = pad([sequences[i][:-1] for i in now]).to(self.device)
            # Right padding needs no mask: under causal attention nothing looks at it.
            states = self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
            for i, row in zip(now, states, strict=True):
                found[i] = row[: len(sequences[i]) - 1].clone()
        return [found[i] for i in range(len(sequences))]

    @torch.no_grad()
    def logits(self, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Logits over the given tokens, or over all.  # [rows, width] -> [rows, tokens] float32"""
        weight, bias = self.head.weight, self.head.bias
        if token_ids is not None:
            weight, bias = weight[token_ids], None if bias is None else bias[token_ids]
        products = torch.nn.functional.linear(states.to(weight.dtype), weight, bias)
        return self.rule.apply(products.float())


def _small(states: Tensor) -> Tensor:
    states = states.cpu()
    return states.half() if states.dtype == torch.float32 else states
