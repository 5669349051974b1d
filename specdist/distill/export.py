"""Phase 4: the draft as a normal checkpoint folder, and as the slim one that is shipped.

The full folder stands alone: config, weights in bfloat16, the target's tokenizer. The slim
one leaves out the embeddings when they are the target's; ``config.json`` says so and
``specdist.models.shipped`` puts them back. A reduced output vocabulary travels inside the
weights as ``specdist.output_token_ids``. Called by ``pipeline``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specdist.distill.files import write_text, written_whole
from specdist.distill.student import Student
from specdist.engine.loader import OUTPUT_IDS, load_model
from specdist.errors import ConfigError
from specdist.models.checkpoint import EMBEDDINGS
from specdist.models.pair import PairReport, check_pair
from specdist.models.shipped import CARRIED_FILES, WEIGHTS

OTHER_TOKENIZER_FILES = ("special_tokens_map.json", "added_tokens.json", "tokenizer.model")


def export_draft(student: Student, target_folder: Path, folder: Path) -> PairReport:
    """Write the full draft; checks that the engine loads it and that the pair fits."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(student, folder, with_embeddings=True)
    _write_config(student, folder, {})
    for name in (*CARRIED_FILES, *OTHER_TOKENIZER_FILES):
        if (target_folder / name).is_file():
            shutil.copyfile(target_folder / name, folder / name)
    load_model(folder, "cpu", "float32", torch.get_num_threads())
    return check_pair(target_folder, folder)


def export_slim(student: Student, folder: Path, target_name: str) -> None:
    """Write the draft without the embeddings that are its target's."""
    if not student.has_target_embeddings:
        raise ConfigError("slim needs embeddings target: this student has embeddings of its own")
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(student, folder, with_embeddings=False)
    note = {"specdist": {"embeddings": "target", "target": target_name}}
    _write_config(student, folder, note)


def _write_weights(student: Student, folder: Path, with_embeddings: bool) -> None:
    tensors = {
        name: value.detach().cpu().to(torch.bfloat16).contiguous()
        for name, value in student.model.state_dict().items()
    }
    if not with_embeddings:
        if EMBEDDINGS not in tensors:
            raise ConfigError(f"slim needs a model whose embeddings are called {EMBEDDINGS}")
        del tensors[EMBEDDINGS]
    if student.output_token_ids is not None:
        tensors[OUTPUT_IDS] = student.output_token_ids.cpu()
    with written_whole(folder / WEIGHTS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod(0o644)  # safetensors writes 0600


def _write_config(student: Student, folder: Path, note: dict[str, Any]) -> None:
    settings = student.config.to_diff_dict().items()
    config = {key: value for key, value in settings if not key.startswith("_")}
    config |= {
        "architectures": [type(student.model).__name__],
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "vocab_size": student.config.get_text_config().vocab_size,
        **note,
    }
    write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
