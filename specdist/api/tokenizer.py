"""A model folder's tokenizer: text and chats to token ids, ids to text and bytes.

Reads tokenizer.json, tokenizer_config.json, generation_config.json, config.json and
chat_template.jinja; loads no torch. Knows nothing of requests. Used all over the API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from specdist.api.chat_template import ChatTemplate
from specdist.api.token_bytes import DecoderStyle, read_style
from specdist.errors import ModelError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def _read_json(path: Path) -> dict[str, Any]:
    """The mapping in that file; empty where the file is absent (all but one are optional)."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a mapping, got {type(values).__name__}")
    return values


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for values in (_read_json(folder / "special_tokens_map.json"), config):
        for name in SPECIAL_NAMES:
            value = values.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


class Tokenizer:
    """Text <-> token ids of one model; stateless after loading, safe in threads."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        core.no_truncation()
        core.no_padding()
        self._core = core
        layout = json.loads(core.to_str())
        self.style: DecoderStyle = read_style(layout["decoder"])
        self.vocab_size: int = core.get_vocab_size(with_added_tokens=True)
        added = core.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_tokens = dict(special_tokens or {})
        self.eos_token_ids = frozenset(eos_token_ids or self._named_ids("eos_token"))
        self.chat_template = ChatTemplate(chat_template, self.special_tokens)
        self._bytes: dict[int, bytes] = {}
        swallows = any(token.lstrip or token.rstrip for token in added.values())
        keeps_bytes = self.style.byte_level and not layout["normalizer"] and not swallows
        lengths = (len(self.style.token_bytes(t)) for t in core.get_vocab()) if keeps_bytes else ()
        self._longest_token = max(lengths, default=0)  # 0: not known

    @classmethod
    def load(cls, folder: Path | str) -> Tokenizer:
        """Read a model folder; raises ModelError naming the file that is wrong."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} cannot be read: {error}") from None
        config = _read_json(folder / "tokenizer_config.json")
        return cls(
            core,
            special_tokens=_special_tokens(folder, config),
            eos_token_ids=_eos_ids(folder),
            chat_template=_chat_template(folder, config),
        )

    def to_json(self) -> str:
        """The text of its tokenizer.json."""
        text: str = self._core.to_str()
        return text

    def _named_ids(self, name: str) -> tuple[int, ...]:
        token_id = self._core.token_to_id(self.special_tokens.get(name, ""))
        return () if token_id is None else (token_id,)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; a BOS that the text already begins with is not doubled."""
        bos = self.special_tokens.get("bos_token")
        if add_special_tokens and bos and text.startswith(bos):
            bare = self._encode(text, False)
            full = self._encode(text, True)
            return full[1:] if full[:2] == bare[:1] * 2 else full
        return self._encode(text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._core.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that this text surely needs; cheap, for texts far too long."""
        return len(text) // self._longest_token if self._longest_token else 0

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation up to where the assistant's answer begins."""
        return self.encode(self.chat_template.render(messages), add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids, all at once."""
        text: str = self._core.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for padding rows of the model."""
        token: str | None = self._core.id_to_token(token_id)
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that this token stands for within a text."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self.token(token_id)
            known = b"" if token is None else self.style.token_bytes(token)
            self._bytes[token_id] = known
        return known


def _eos_ids(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        values = _read_json(folder / name)
        found = values.get("eos_token_id", values.get("text_config", {}).get("eos_token_id"))
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            return tuple(int(i) for i in ids)
    return ()


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates by name
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
