"""A model from the Hugging Face hub, or from its local cache when there is no network.

Takes safetensors, configs and tokenizers only; never pickle, never code. Called by
``specdist.models.resolve``.
"""

from __future__ import annotations

import re
from pathlib import Path

from specdist.errors import ModelError
from specdist.models.gguf import keep_to_yourself

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
GGUF_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/([\w./-]+\.gguf)")
PATTERNS = ["*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "merges.txt"]
NOT_WANTED = ["original/*", "onnx/*", "*.bin", "*.py", "*.pt", "*.pth"]


def fetch_from_hub(name: str) -> Path:
    """A snapshot folder for ``owner/name`` or ``owner/name@revision``."""
    repo, _, revision = name.partition("@")
    keep_to_yourself()
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            repo,
            revision=revision or None,
            allow_patterns=PATTERNS,
            ignore_patterns=NOT_WANTED,
        )
    except (OSError, ValueError) as error:
        raise _explained(name, error) from error
    if not any(Path(folder).glob("*.safetensors")):
        raise ModelError(
            f"{name} has no safetensors weights on the hub; to use a GGUF file of it, "
            f"name the file: {repo}/<file>.gguf"
        )
    return Path(folder)


def fetch_gguf_from_hub(name: str) -> Path:
    """One GGUF file for ``owner/name/file.gguf``."""
    match = GGUF_ID.fullmatch(name)
    if match is None:
        raise ModelError(f"{name!r} is not of the form owner/name/file.gguf")
    keep_to_yourself()
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(match.group(1), match.group(2)))
    except (OSError, ValueError) as error:
        raise _explained(name, error) from error


def _explained(name: str, error: Exception) -> ModelError:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"cannot get model {name!r} from the Hugging Face hub ({first_line}). "
        "Without a network give a local folder, or 'demo' and 'demo-draft'"
    )
