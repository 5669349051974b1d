"""The shipped draft: a folder with ``config.json`` and a small ``model.safetensors``.

The embeddings are the target's and are not repeated: ``config.json`` says
``"specdist": {"embeddings": "target", "target": NAME}`` and whoever loads the draft takes
``model.embed_tokens.weight`` from that target. ``lm_head.weight`` has one row per entry of the
tensor ``specdist.output_token_ids``. Called by ``specdist.distill.short``.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specdist.distill.student import Student

OUTPUT_IDS = "specdist.output_token_ids"
EMBEDDINGS = "model.embed_tokens.weight"


def export_student(student: Student, folder: Path, target_name: str) -> None:
    """Write the student in bfloat16, without its embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in student.named_parameters()
        if name != EMBEDDINGS
    }
    tensors[OUTPUT_IDS] = student.output_token_ids
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = student.config.to_diff_dict().items()
    config = {key: value for key, value in settings if not key.startswith("_")}
    config |= {
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "specdist": {"embeddings": "target", "target": target_name},
    }
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def load_export(folder: Path, embeddings: Tensor) -> Student:
    """Read an exported draft back as a float32 student, with the target's embeddings."""
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop(OUTPUT_IDS)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    student = Student(model, ids)
    state = {name: value.float() for name, value in tensors.items()}
    state |= {EMBEDDINGS: embeddings, "output_token_ids": ids}
    student.load_state_dict(state)
    return student
