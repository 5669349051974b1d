"""Tiny random models as whole model folders that read and write any text, byte by byte.

The tokenizer has the 256 bytes and four special tokens; the chat template is ChatML, as in
the demo target. For tests that need real text to be tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.tiny_models import EOS_ID, save_tiny

SPECIAL = ("<pad>", "<bos>", "<|im_end|>", "<|im_start|>")
VOCAB = 260
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_byte_folder(
    folder: Path, kind: str = "llama", template: str | None = CHATML, **model: Any
) -> Path:
    """``save_tiny`` with a tokenizer of bytes; ``template`` None: a model without chats."""
    save_tiny(folder, kind, vocab_size=VOCAB, **model)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet]
    core = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    core.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[EOS_ID], "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
