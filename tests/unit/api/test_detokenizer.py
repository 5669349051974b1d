"""Incremental detokenizing: the join of all pieces is one decode of all ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from specdist.api.detokenizer import Detokenizer
from specdist.api.tokenizer import Tokenizer
from tests.unit.api.fakes import byte_level_core, sentencepiece_core

BYTE_LEVEL_CORE = byte_level_core()
BYTE_LEVEL_CORE.add_special_tokens(["<é>", "<a b>"])  # odd added tokens: bytes and blanks
BYTE_LEVEL_CORE.add_tokens(["né w"])
BYTE_LEVEL = Tokenizer(BYTE_LEVEL_CORE)
LLAMA_CORE = sentencepiece_core()
LLAMA = Tokenizer(LLAMA_CORE)
GEMMA = Tokenizer(
    sentencepiece_core(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    )
)
STRIPS_TWO = Tokenizer(
    sentencepiece_core(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    )
)
METASPACE = Tokenizer(sentencepiece_core(decoders.Metaspace()))
STYLES = {
    "byte": BYTE_LEVEL,
    "llama": LLAMA,
    "gemma": GEMMA,
    "two": STRIPS_TWO,
    "metaspace": METASPACE,
}


def pieces(tokenizer: Tokenizer, ids: list[int], skip: bool = True, prompt=()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, prompt_token_ids=prompt)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def llama_ids(*tokens: str) -> list[int]:
    return [LLAMA_CORE.token_to_id(t) for t in tokens]


@given(
    st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 5), max_size=30),
    st.booleans(),
)
def test_byte_level_equals_one_decode(ids: list[int], skip: bool) -> None:
    """B025 and all like it: any ids, also broken sequences and special tokens between."""
    whole = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(BYTE_LEVEL, ids, skip)) == whole


@given(st.text(max_size=30), st.booleans())
def test_text_comes_back(text: str, skip: bool) -> None:
    ids = BYTE_LEVEL.encode(text)
    assert "".join(pieces(BYTE_LEVEL, ids, skip)) == BYTE_LEVEL.decode(
        ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("style", ["llama", "gemma", "two", "metaspace"])
@given(
    tokens=st.lists(
        st.one_of(
            st.sampled_from(["▁", "▁leading", "▁x", "a", "é", "▁▁", "<s>", "</s>"]).map(
                lambda t: [t]
            ),
            st.characters(exclude_categories=["Cs"]).map(
                lambda c: [f"<0x{b:02X}>" for b in c.encode()]
            ),
        ),
        max_size=12,
    ),
    skip=st.booleans(),
)
def test_sentencepiece_equals_one_decode(style: str, tokens: list[list[str]], skip: bool) -> None:
    tokenizer = STYLES[style]
    ids = llama_ids(*(t for group in tokens for t in group))
    if style in ("two", "metaspace"):  # these write byte tokens out as they are
        ids = [i for i in ids if not 3 <= i < 259]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(tokenizer, ids, skip)) == whole


def test_only_incomplete_characters_wait() -> None:
    ids = BYTE_LEVEL.encode("Ω")
    assert len(ids) == 2
    assert pieces(BYTE_LEVEL, [*ids, *ids]) == ["", "Ω", "", "Ω", ""]
    assert pieces(BYTE_LEVEL, ids[:1]) == ["", "\ufffd"]


def test_a_blank_after_a_broken_character_loses_nothing() -> None:
    """B025: a token that starts with a blank while bytes are pending."""
    llama, ha = BYTE_LEVEL.encode("🦙"), BYTE_LEVEL.encode(" ha")
    ids = [*llama[:2], *ha]
    assert "".join(pieces(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids) == "\ufffd ha"


def test_leading_blanks_are_kept_after_a_prompt() -> None:
    """B026: the first delta of an answer is " Paris", not "Paris"."""
    prompt, answer = llama_ids("<s>", "a"), llama_ids("▁Paris", "▁x")
    assert pieces(LLAMA, answer, prompt=prompt) == [" Paris", " x", ""]
    both = LLAMA.decode([*prompt, *answer])
    assert "a" + "".join(pieces(LLAMA, answer, prompt=prompt)) == both
    assert pieces(METASPACE, answer, prompt=prompt) == [" Paris", " x", ""]


def test_a_prompt_of_special_tokens_only_is_the_start_of_the_text() -> None:
    prompt, answer = llama_ids("<s>"), llama_ids("▁Paris")
    assert pieces(LLAMA, answer, prompt=prompt) == ["Paris", ""]
    assert LLAMA.decode([*prompt, *answer]) == "Paris"


@pytest.mark.parametrize("style", ["llama", "metaspace"])
def test_the_leading_blank_is_stripped_once(style: str) -> None:
    """B027: an empty first piece does not make the next one lose its blank."""
    ids = llama_ids("▁", "▁leading", "▁x")
    assert pieces(STYLES[style], ids) == ["", " leading", " x", ""]
    assert STYLES[style].decode(ids) == " leading x"


def test_a_broken_run_of_bytes_keeps_its_complete_characters() -> None:
    """The documented exception: text that was shown is not taken back."""
    ids = llama_ids("a", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "b")
    assert pieces(LLAMA, ids) == ["a", "", "", "日", "", "\ufffdb", ""]
    broken = llama_ids("<0xE6>", "<0x97>", "b")
    assert "".join(pieces(LLAMA, broken)) == LLAMA.decode(broken) == "\ufffd\ufffdb"
