"""Tiny random decoder-only models of every supported family, for tests of all rooms.

``build_tiny(kind)`` makes one in memory, ``save_tiny(folder, kind)`` writes it as a
Hugging Face folder (config.json, model.safetensors). The same arguments give the same
weights everywhere. No tokenizer: tests work on token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

EOS_ID = 2


def _llama(common: dict[str, Any], window: int) -> Any:
    return transformers.LlamaConfig(**common, tie_word_embeddings=True)


def _qwen2(common: dict[str, Any], window: int) -> Any:
    return transformers.Qwen2Config(**common, tie_word_embeddings=True)


def _qwen3(common: dict[str, Any], window: int) -> Any:
    return transformers.Qwen3Config(**common, head_dim=16, tie_word_embeddings=False)


def _mistral(common: dict[str, Any], window: int) -> Any:
    return transformers.MistralConfig(**common, sliding_window=window)


def _gemma2(common: dict[str, Any], window: int) -> Any:
    # Small softcaps, so that a forgotten softcap moves the logits far above any tolerance.
    return transformers.Gemma2Config(
        **common,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=window,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    )


def _gemma3(common: dict[str, Any], window: int) -> Any:
    layers = common["num_hidden_layers"]
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    return transformers.Gemma3TextConfig(
        **common, head_dim=16, query_pre_attn_scalar=16, sliding_window=window, layer_types=kinds
    )


CONFIGS: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
KINDS = tuple(CONFIGS)


def tiny_config(
    kind: str = "llama",
    *,
    vocab_size: int = 96,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    window: int = 8,
    max_len: int = 512,
) -> Any:
    """The transformers config of one tiny model; ``window`` counts for windowed kinds."""
    common = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": max_len,
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
    }
    return CONFIGS[kind](common, window)


def build_tiny(
    kind: str = "llama", *, vocab_size: int = 96, layers: int = 2, seed: int = 0, **sizes: Any
) -> Any:
    """A random model in float32, eval mode; weights are large enough for varied answers."""
    config = tiny_config(kind, vocab_size=vocab_size, layers=layers, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norm gains stay as they are; the default spread of 0.02 leaves a random
                # model nearly context-free, which would hide attention mistakes.
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
    return model.eval()


def save_tiny(
    folder: str | Path,
    kind: str = "llama",
    *,
    vocab_size: int = 96,
    layers: int = 2,
    seed: int = 0,
    output_token_ids: Sequence[int] | None = None,
    **sizes: Any,
) -> Path:
    """Write a tiny model as a Hugging Face folder and return the folder.

    ``output_token_ids`` makes a reduced output vocabulary: lm_head keeps only these rows
    and the ids travel inside the checkpoint as ``specdist.output_token_ids``.
    """
    folder = Path(folder)
    model = build_tiny(kind, vocab_size=vocab_size, layers=layers, seed=seed, **sizes)
    model.save_pretrained(folder, safe_serialization=True)
    if output_token_ids is not None:
        ids = torch.tensor(list(output_token_ids), dtype=torch.int64)
        state = {k: v.clone().contiguous() for k, v in model.state_dict().items()}
        state["lm_head.weight"] = model.get_output_embeddings().weight[ids].clone()
        state["specdist.output_token_ids"] = ids
        model.config.tie_word_embeddings = False
        model.config.save_pretrained(folder)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
