"""Start-up checks: does this model use attention only in ways that the engine implements?

Two stages. The config is checked for what is known to be unsupported (layers with a
recurrent state, RoPE that depends on the batch). Then two small forward passes: one
records how each layer calls attention, one compares the paged attention with the
library's own. So a new architecture is either right or refused. Called by the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from specdist.engine.attention import NAME
from specdist.engine.batch import Batch, BatchOptions
from specdist.engine.kv_cache import KvCache, KvShape
from specdist.engine.sequence import Sequence, chain_rows
from specdist.errors import ModelError

PROBE = "specdist_probe"
PROBE_ROWS = 8
LAYER_TYPES = {"full_attention", "sliding_attention"}
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}  # frequencies change with the longest row
# What a layer may hand to attention: handled by us, or without influence on it.
KNOWN_ARGUMENTS = {
    *("scaling", "sliding_window", "softcap", "position_ids", "use_cache", "cache", "probe"),
    *("dropout", "output_attentions", "output_hidden_states", "output_router_logits", "is_causal"),
}


class LayerCall(NamedTuple):
    """How one layer called attention."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int
    group_size: int
    dtype: torch.dtype
    unknown: tuple[str, ...]


def _probe_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **arguments: Any
) -> tuple[Tensor, None]:
    unknown = [k for k, v in arguments.items() if v is not None and k not in KNOWN_ARGUMENTS]
    unknown += ["dropout"] if arguments.get("dropout") else []
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        unknown.append("is_causal=False")
    kv_heads, key_dim = key.shape[1], key.shape[3]
    arguments["probe"].append(
        LayerCall(
            layer=module.layer_idx,
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value.shape[3],
            group_size=query.shape[1] // kv_heads,
            dtype=key.dtype,
            unknown=tuple(unknown),
        )
    )
    batch, heads, rows = query.shape[:3]
    return query.new_zeros((batch, rows, heads, value.shape[3])), None


AttentionInterface.register(PROBE, _probe_attention)
AttentionMaskInterface.register(PROBE, lambda *args, **kwargs: None)


def check_config(model: Any, config: Any) -> None:
    """Refuse by name what can be seen without running the model."""
    name = type(model).__name__
    if not model._supports_attention_backend or getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name}: only decoder-only models with pluggable attention are supported")
    other = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    if other:
        raise ModelError(f"{name}: layers of type {', '.join(sorted(other))} are not supported")
    for rope_type in _rope_types(config):
        if rope_type in BATCH_DEPENDENT_ROPE:
            raise ModelError(
                f"{name}: RoPE scaling {rope_type!r} is not supported, it would make one "
                "request's answer depend on the others"
            )
    if not getattr(config, "max_position_embeddings", None):
        raise ModelError(f"{name}: the config has no max_position_embeddings")


def _rope_types(config: Any) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    for entry in (parameters, *(v for v in parameters.values() if isinstance(v, dict))):
        if "rope_type" in entry:
            yield entry["rope_type"]


@torch.inference_mode()
def check_forward(model: Any, config: Any) -> tuple[KvShape, int]:
    """KV shape and group size, proved by running; leaves the model with paged attention."""
    name = type(model).__name__
    tokens = _probe_tokens(model)
    ids = torch.tensor([tokens], device=model.device)
    model.set_attn_implementation("eager")
    expected = model(input_ids=ids, use_cache=False).logits[0].float()
    model.set_attn_implementation(PROBE)
    calls: list[LayerCall] = []
    model(input_ids=ids, use_cache=False, probe=calls)
    _check_calls(name, calls, config.num_hidden_layers)
    call = calls[0]
    shape = KvShape(len(calls), call.kv_heads, call.key_dim, call.dtype)
    model.set_attn_implementation(NAME)
    got = _paged_logits(model, tokens, shape, call.group_size)
    error = float((got - expected).norm() / expected.norm())
    tolerance = 1e-3 if call.dtype == torch.float32 else 0.1
    if not error <= tolerance:
        raise ModelError(
            f"{name}: paged attention differs from the library's by {error:.2g} (relative), "
            f"allowed is {tolerance}: the architecture needs something that is not implemented"
        )
    return shape, call.group_size


def _probe_tokens(model: Any) -> list[int]:
    vocab_size = model.get_input_embeddings().weight.shape[0]
    return [(7 + 31 * row) % vocab_size for row in range(PROBE_ROWS)]


def _check_calls(name: str, calls: list[LayerCall], num_layers: int) -> None:
    if sorted(call.layer for call in calls) != list(range(num_layers)):
        raise ModelError(
            f"{name}: {num_layers} layers must call attention once each, "
            f"got calls of layers {[call.layer for call in calls]}"
        )
    for call in calls:
        if call.unknown:
            raise ModelError(
                f"{name}: layer {call.layer} needs attention with {', '.join(call.unknown)}, "
                "which is not implemented"
            )
        if call.key_dim != call.value_dim or call[1:] != calls[0][1:]:
            raise ModelError(f"{name}: layers with different KV shapes are not supported")


def _paged_logits(model: Any, tokens: list[int], shape: KvShape, group_size: int) -> Tensor:
    kv = KvCache(shape, PROBE_ROWS, model.device)
    seq = Sequence("probe", tokens, block_table=[0])
    options = BatchOptions(group_size, shape.dtype, model.device)
    batch = Batch([chain_rows(seq, tokens)], PROBE_ROWS, kv.layers, options)
    output = model(
        input_ids=batch.input_ids[None],
        position_ids=batch.positions[None],
        use_cache=False,
        batch=batch,
    )
    return output.logits[0].float()
