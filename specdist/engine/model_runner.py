"""Runs a loaded model over one batch and returns the wanted logits.

The one place where logits get their final width: padding columns are cut, a reduced
output vocabulary is spread to full width. Knows no sequences' state; called by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdist.engine.batch import Batch
from specdist.engine.loader import LoadedModel


class ModelRunner:
    """One model's forward pass."""

    def __init__(
        self, loaded: LoadedModel, vocab_size: int, masked_ids: Sequence[int] = ()
    ) -> None:
        self._model = loaded.model
        self._output_token_ids = loaded.output_token_ids
        self._vocab_size = vocab_size
        self._masked_ids = torch.tensor(masked_ids, dtype=torch.int64, device=loaded.device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> list[Tensor]:
        """Logits of each item's wanted rows, [wanted, vocab_size] float32."""
        output = self._model(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            batch=batch,
        )
        logits = self._full_width(output.logits[0].float())
        if len(self._masked_ids):
            logits = logits.index_fill(1, self._masked_ids, -torch.inf)
        return list(logits.split([len(lay.rows.logits) for lay in batch.layouts]))

    def _full_width(self, logits: Tensor) -> Tensor:
        ids, width = self._output_token_ids, self._vocab_size
        if ids is not None:
            known = ids < width
            full = logits.new_full((logits.shape[0], width), -torch.inf)
            return full.index_copy_(1, ids[known], logits[:, known])
        if logits.shape[1] < width:
            # Ids that this model does not know get probability 0.
            return torch.nn.functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)
        return logits[:, :width]
