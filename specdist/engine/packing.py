"""Linear layers with weights laid out once for oneDNN: cheaper products of a few rows on CPUs.

The library's ordinary product lays the weights out anew in every call, which costs most
for the 2 to 16 rows of a verification. A packed model serves only: its weights cannot be
read or trained. Called by the loader, on CPUs; other devices keep their own kernels.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

ROWS_HINT = 16  # the layout chosen for this many rows is good from 1 to whole chunks
# Measured (2 AVX2 cores, SmolLM2-135M, float32): all layers packed, 4 rows take 65 ms, not 111, and
# 1 row the same 65 ms; with only the output layer packed 4 rows take 111 ms.
MIN_ELEMENTS = {torch.float32: 0, torch.bfloat16: 0}


class PackedLinear(nn.Module):
    """A linear layer whose weight only oneDNN can read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and processor have oneDNN products for the type."""
    if not torch.backends.mkldnn.is_available() or dtype not in MIN_ELEMENTS:
        return False
    return dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(model: nn.Module, dtype: torch.dtype) -> int:
    """Replace the linear layers that gain from it, in place; returns how many."""
    if not can_pack(dtype):
        logger.info("no packed products for %s on this machine", dtype)
        return 0
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        # Subclasses compute something else; they stay as they are.
        if type(child) is nn.Linear and child.weight.numel() >= MIN_ELEMENTS[dtype]
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)
