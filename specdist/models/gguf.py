"""A GGUF file turned once into a normal checkpoint folder (safetensors and tokenizer).

Uses transformers' own GGUF reader with de-quantisation, in float32, so that the values
are exactly those of the file. Knows nothing of caches. Called by ``specdist.models.demo``
and ``specdist.models.resolve``.
"""

from __future__ import annotations

import os
from pathlib import Path

from specdist.errors import ModelError
from specdist.models.progress import Progress

NUM_CONVERT_STEPS = 3


def convert_gguf(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write ``gguf`` as a float32 checkpoint into the empty ``folder``.

    Needs memory for the whole model in float32. Raises ModelError when the file cannot
    be read or its architecture is unknown to transformers.
    """
    keep_to_yourself()
    phase = f"convert {gguf.name}"
    progress(phase, 0, NUM_CONVERT_STEPS)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # we draw ours
    where = {"gguf_file": gguf.name, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
        progress(phase, 1, NUM_CONVERT_STEPS)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            **where,
        )
    except (ValueError, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"cannot read GGUF file {gguf}: {error}") from error
    progress(phase, 2, NUM_CONVERT_STEPS)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    progress(phase, NUM_CONVERT_STEPS, NUM_CONVERT_STEPS)


def keep_to_yourself() -> None:
    """Switch off usage statistics of the libraries; must run before they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
