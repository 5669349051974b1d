"""Loading a model folder, encoding, bytes of tokens, chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import processors

from specdist.api.chat_template import ChatTemplate
from specdist.api.tokenizer import Tokenizer
from specdist.errors import InvalidRequestError, ModelError
from tests.unit.api.fakes import CHAT_TEMPLATE, EOS, byte_level_core, sentencepiece_core


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def test_eos_comes_from_the_generation_config_first(folder: Path) -> None:
    assert Tokenizer.load(folder).eos_token_ids == {EOS}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    assert Tokenizer.load(folder).eos_token_ids == {1, 2}
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).eos_token_ids == {0}
    (folder / "config.json").unlink()
    assert Tokenizer.load(folder).eos_token_ids == {EOS}  # by its name


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.load(folder)


def test_encode_and_decode(tokenizer: Tokenizer) -> None:
    for text in ("the quick brown fox", " ha ha", "Ω 🦙 日本語", "a\x00b\r\n\t", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_end|>") == [EOS]
    assert tokenizer.encode("") == []


def test_bytes_of_every_token_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "Ω🙂 the fox<|im_end|>日本"
    parts = [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]
    assert b"".join(parts) == text.encode()
    assert tokenizer.token_bytes(10**6) == b""  # a padding row of the model


def test_bytes_of_sentencepiece_tokens() -> None:
    core = sentencepiece_core()
    tokenizer = Tokenizer(core)
    ids = [core.token_to_id(t) for t in ("▁Paris", "<0xE6>", "<0x0A>", "é")]
    parts = [b" Paris", b"\xe6", b"\n", "é".encode()]
    assert [tokenizer.token_bytes(i) for i in ids] == parts


def test_unknown_decoders_are_refused() -> None:
    core = byte_level_core()
    core.decoder = __import__("tokenizers").decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer(core)


def test_a_bos_in_the_text_is_not_doubled() -> None:
    """B077: the text of a chat template, sent as a plain prompt, gives the same ids."""
    core = byte_level_core()
    core.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer = Tokenizer(core, special_tokens={"bos_token": "<|im_start|>"})
    assert tokenizer.encode("fox")[0] == 1
    assert tokenizer.encode("<|im_start|>fox") == tokenizer.encode("fox")
    assert tokenizer.encode("<|im_start|><|im_start|>fox")[:3] == [1, 1, tokenizer.encode("fox")[1]]


def test_fewest_tokens_is_a_lower_bound(tokenizer: Tokenizer) -> None:
    for text in ("the the the the", "ha" * 50, "x", "<|endoftext|>" * 9):
        assert 0 <= tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))
    assert Tokenizer(sentencepiece_core()).fewest_tokens("x" * 10**6) == 0  # not known


def test_chat_and_its_text_give_the_same_ids(tokenizer: Tokenizer) -> None:
    """B077 for a tokenizer that adds nothing by itself."""
    messages = [{"role": "user", "content": "ha ha"}]
    text = tokenizer.chat_template.render(messages)
    assert tokenizer.encode(text) == tokenizer.encode_chat(messages)
    assert text == (
        "<|im_start|>system\nYou are a test.<|im_end|>\n"
        "<|im_start|>user\nha ha<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_empty_system_message_is_kept() -> None:
    """B140: no system, an empty one and two user turns in a row are all fine."""
    template = ChatTemplate(CHAT_TEMPLATE, {})
    user = {"role": "user", "content": "x"}
    assert "You are a test" in template.render([user])
    assert "You are a test" not in template.render([{"role": "system", "content": ""}, user])
    assert template.render([user, user]).count("<|im_start|>user") == 2


def test_what_the_template_refuses_comes_back_with_its_words() -> None:
    """B140: a template that raises is the caller's mistake (400), with its text."""
    template = ChatTemplate(CHAT_TEMPLATE, {})
    with pytest.raises(InvalidRequestError, match="no tools here") as caught:
        template.render([{"role": "system", "content": ""}, {"role": "tool", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages | tojson }}", '<s>[{"role": "é"}]'),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "é"),
        ("{% for m in [1, 2] %}{% if m > 1 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_template_features(source: str, text: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render([{"role": "é"}]) == text


def test_templates_run_in_a_sandbox() -> None:
    for attack in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(InvalidRequestError, match="refuses"):
            ChatTemplate(attack, {}).render([{"role": "user", "content": "x"}])
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate("{% if %}", {})
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ChatTemplate(None, {}).render([])


def test_token_facts_of_the_demo_pair(demo_target_folder: Path) -> None:
    """The ids that the public bug reports are written in."""
    tokenizer = Tokenizer.load(demo_target_folder)
    facts = {"🦙": [10813, 116, 243], "🙂": [10813, 38887], "Ω": [153, 119], ",": [28]}
    assert {text: tokenizer.encode(text) for text in facts} == facts
    assert tokenizer.eos_token_ids == {2}
    user = {"role": "user", "content": "Say hi."}
    assert len(tokenizer.encode_chat([user])) == 33
    assert len(tokenizer.encode_chat([{"role": "system", "content": ""}, user])) == 17
    assert tokenizer.token_bytes(5664) == bytes([32, 206])
    assert tokenizer.token_bytes(119) == bytes([169])
