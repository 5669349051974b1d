"""Loads one model's weights and refuses, at start-up, what the engine cannot run exactly.

Weights come from safetensors or a GGUF file, never from pickle, and never with remote
code. A checkpoint may carry ``specdist.output_token_ids`` [K]: then its lm_head has K rows
and the ids say which token each row stands for. Called by workers and tools.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import cached_file

from specdist.engine.dtypes import resolve_dtype
from specdist.engine.kv_cache import KvShape
from specdist.engine.packing import pack_linears
from specdist.engine.support import check_config, check_forward
from specdist.errors import ConfigError, ModelError

OUTPUT_IDS = "specdist.output_token_ids"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for an Engine."""

    model: Any  # the transformers model, eval mode, attention set to the paged one
    config: Any  # its text config
    device: torch.device
    dtype: torch.dtype
    kv_shape: KvShape
    group_size: int  # query heads per KV head
    output_token_ids: Tensor | None = None  # [K]: reduced output vocabulary
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def num_embeddings(self) -> int:
        """Token ids that may be fed are below this."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def vocab_size(self) -> int:
        """Columns of the logits once a reduced output vocabulary is spread."""
        if self.output_token_ids is not None:
            return self.num_embeddings
        return self.model.get_output_embeddings().out_features

    @property
    def max_model_len(self) -> int:
        """The longest context the model's config allows."""
        return self.config.max_position_embeddings


def load_model(
    path: str | Path, device: str = "cpu", dtype: str = "auto", num_threads: int | None = None
) -> LoadedModel:
    """Load a folder, a .gguf file or a hub id; ModelError says what is wrong with it."""
    place = _checked_device(device)
    use_threads(num_threads)
    number = resolve_dtype(dtype, place)
    try:
        model, ids = _load(str(path), number)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, ImportError) as error:
        raise ModelError(f"cannot load model {str(path)!r}: {error}") from error
    model = model.requires_grad_(False).to(place)
    if place.type == "cpu":
        pack_linears(model, number)
    return prepare(model, output_token_ids=None if ids is None else ids.to(place))


def prepare(model: Any, output_token_ids: Tensor | None = None) -> LoadedModel:
    """Check a model that is in memory already and give it the paged attention."""
    config = model.config.get_text_config()
    check_config(model, config)
    model.requires_grad_(False).eval()
    if output_token_ids is not None:
        _check_output_ids(output_token_ids, model)
    shape, group_size = check_forward(model, config)
    return LoadedModel(
        model=model,
        config=config,
        device=model.device,
        dtype=shape.dtype,
        kv_shape=shape,
        group_size=group_size,
        output_token_ids=output_token_ids,
        eos_token_ids=_eos_ids(model, config),
    )


def use_threads(num_threads: int | None) -> None:
    """Let torch use so many threads (None: all cores) in the calling thread.

    OpenMP keeps the number per thread: the one that runs the forward passes must call this.
    """
    torch.set_num_threads(num_threads or _num_cores())


def _num_cores() -> int:
    # Not torch's own default: process managers set OMP_NUM_THREADS to 1 for their workers.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked_device(device: str) -> torch.device:
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu or cuda, got {device!r}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, but this machine has no usable CUDA device")
    return place


def _load(path: str, dtype: torch.dtype) -> tuple[Any, Tensor | None]:
    options = {"dtype": dtype, "trust_remote_code": False, "attn_implementation": "eager"}
    if path.endswith(".gguf"):
        quantization = transformers.GgufConfig(dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(Path(path).parent),
            gguf_file=Path(path).name,
            quantization_config=quantization,
            **options,
        )
        return model.to(dtype), None
    ids = _read_output_ids(path)
    if ids is not None:
        return _load_reduced(path, ids, options), ids
    model = transformers.AutoModelForCausalLM.from_pretrained(path, use_safetensors=True, **options)
    return model, None


def _read_output_ids(path: str) -> Tensor | None:
    file = cached_file(path, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if file is None:
        return None  # sharded: written by other tools, never with a reduced vocabulary
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(OUTPUT_IDS) if OUTPUT_IDS in tensors.keys() else None  # noqa: SIM118


def _load_reduced(path: str, ids: Tensor, options: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    if config.get_text_config().tie_word_embeddings:
        raise ValueError(f"{OUTPUT_IDS} needs tie_word_embeddings false")
    model = transformers.AutoModelForCausalLM.from_config(config, **options)
    old = model.get_output_embeddings()
    head = nn.Linear(old.in_features, len(ids), bias=old.bias is not None, dtype=options["dtype"])
    model.set_output_embeddings(head)
    state = load_file(cached_file(path, "model.safetensors"))
    del state[OUTPUT_IDS]
    model.load_state_dict(state, strict=True)
    return model


def _check_output_ids(ids: Tensor, model: Any) -> None:
    rows = model.get_output_embeddings().out_features
    vocab_size = model.get_input_embeddings().weight.shape[0]
    if ids.dtype != torch.int64 or ids.shape != (rows,):
        raise ModelError(
            f"{OUTPUT_IDS} must be {rows} int64 ids, one for each lm_head row, "
            f"got {tuple(ids.shape)} {ids.dtype}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ModelError(
            f"{OUTPUT_IDS} must be between 0 and {vocab_size - 1}, "
            f"got {int(ids.min())} to {int(ids.max())}"
        )
    if len(ids.unique()) != rows:
        raise ModelError(f"{OUTPUT_IDS} must be unique, but {rows - len(ids.unique())} repeat")


def _eos_ids(model: Any, config: Any) -> frozenset[int]:
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), config):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found |= {value} if isinstance(value, int) else set(value)
    return frozenset(found)
