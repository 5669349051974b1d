"""The pair check: ids must mean the same text; sizes alone decide nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdist.errors import ModelError
from specdist.models.pair import check_pair
from tests.unit.models.conftest import HIDDEN, MakeFolder


def test_equal_folders_fit_without_a_warning(make_folder: MakeFolder, words: list[str]) -> None:
    target, draft = make_folder("target", words), make_folder("draft", words)
    report = check_pair(target, draft)
    assert report.vocab_size == report.num_draft_outputs == 20
    assert (report.masked_ids, report.warnings) == ((), ())
    assert (report.target_max_len, report.draft_max_len) == (64, 64)


def test_padded_draft_rows_are_masked_not_refused(
    make_folder: MakeFolder, words: list[str]
) -> None:
    """B001, B004, B005: the same tokenizer behind a larger matrix."""
    report = check_pair(make_folder("target", words), make_folder("draft", words, rows=24))
    assert (report.vocab_size, report.target_rows, report.draft_rows) == (20, 20, 24)
    assert "20 to 23 are padding" in report.warnings[0]


def test_padded_target_rows_are_masked_not_refused(
    make_folder: MakeFolder, words: list[str]
) -> None:
    """B002: ids from 20 on must never be sampled, though the target has logits for them."""
    report = check_pair(make_folder("target", words, rows=24), make_folder("draft", words))
    assert (report.vocab_size, report.target_rows) == (20, 24)
    assert "the target's ids 20 to 23" in report.warnings[0]


def test_foreign_vocabulary_is_refused_with_sizes_and_first_difference(
    make_folder: MakeFolder, words: list[str]
) -> None:
    """B003."""
    other = [*words[:7], "other", *words[8:], "more"]
    with pytest.raises(ModelError) as caught:
        check_pair(make_folder("target", words), make_folder("draft", other))
    for part in ("20 tokens", "21", "token id 7", "'w7'", "'other'"):
        assert part in caught.value.message


def test_special_against_ordinary_token_is_a_difference(
    make_folder: MakeFolder, words: list[str]
) -> None:
    target = make_folder("target", words[:19], added=["<end>"])
    with pytest.raises(ModelError, match="token id 19: '<end>' in the target, 'w19'"):
        check_pair(target, make_folder("draft", words))


def test_extra_added_token_of_the_draft_is_masked(
    make_folder: MakeFolder, words: list[str]
) -> None:
    """B009."""
    report = check_pair(make_folder("target", words), make_folder("draft", words, added=["<new>"]))
    assert report.vocab_size == 20
    assert "only the draft has" in report.warnings[0] and "<new>" in report.warnings[0]


def test_differing_special_tokens_are_masked(make_folder: MakeFolder, words: list[str]) -> None:
    target = make_folder("target", words, added=["<a>", "<b>"])
    report = check_pair(target, make_folder("draft", words, added=["<a>", "<c>"]))
    assert (report.vocab_size, report.masked_ids) == (22, (21,))
    assert report.num_draft_outputs == 21


def test_draft_that_cannot_read_every_target_token_is_refused(
    make_folder: MakeFolder, words: list[str]
) -> None:
    target = make_folder("target", words, added=["<a>"])
    with pytest.raises(ModelError, match=r"20 embedding rows, the target 21 tokens.*'<a>'"):
        check_pair(target, make_folder("draft", words))


def reduced(ids: list[int], rows: int | None = None, dtype: type = np.int64) -> dict:
    return {
        "lm_head.weight": np.ones((rows or len(ids), HIDDEN), np.float32),
        "specdist.output_token_ids": np.array(ids, dtype),
    }


def test_reduced_output_vocabulary_is_counted(make_folder: MakeFolder, words: list[str]) -> None:
    draft = make_folder("draft", words, tensors=reduced([3, 1, 19]))
    assert check_pair(make_folder("target", words), draft).num_draft_outputs == 3


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (reduced([0, 0, 1]), "names token 0 more than once"),  # B007: offsets, not ids
        (reduced([0, 1, 20]), r"\[2\] is 20, it must be .* below 20"),  # B007: ids doubled
        (reduced([0, 1, -1]), r"\[2\] is -1"),
        (reduced([0, 1], rows=3), "3 rows"),
        (reduced([0, 1], dtype=np.float32), "must be integers, got F32"),
        ({"specdist.output_token_ids": np.array([0], np.int64)}, "no rows"),
        ({"lm_head.weight": np.ones((3, HIDDEN), np.float32)}, "which tokens they are"),  # B008
    ],
)
def test_wrong_map_of_a_reduced_vocabulary_is_refused(
    make_folder: MakeFolder, words: list[str], tensors: dict, message: str
) -> None:
    draft = make_folder("draft", words, tensors=tensors)
    with pytest.raises(ModelError, match=message):
        check_pair(make_folder("target", words), draft)


def test_a_target_must_have_all_outputs(make_folder: MakeFolder, words: list[str]) -> None:
    target = make_folder("target", words, tensors=reduced([1, 2]))
    with pytest.raises(ModelError, match="it is no target"):
        check_pair(target, make_folder("draft", words))


def test_shorter_draft_context_is_a_warning(make_folder: MakeFolder, words: list[str]) -> None:
    target = make_folder("target", words)
    draft = make_folder("draft", words, max_position_embeddings=16)
    report = check_pair(target, draft, target_max_len=32)
    assert (report.target_max_len, report.draft_max_len) == (32, 16)
    assert "beyond 16 tokens decoding goes on without the draft" in report.warnings[0]


def test_context_beyond_the_model_is_refused(make_folder: MakeFolder, words: list[str]) -> None:
    folder = make_folder("target", words)
    with pytest.raises(ModelError, match="at most 64, got 65"):
        check_pair(folder, folder, target_max_len=65)


def test_other_end_of_sequence_is_a_warning(make_folder: MakeFolder, words: list[str]) -> None:
    draft = make_folder("draft", words, eos_token_id=[1, 0])
    report = check_pair(make_folder("target", words), draft)
    assert report.warnings == (
        "end-of-sequence ids differ: target [0], draft [0, 1]; the target's count",
    )


def test_nested_text_config_is_read(make_folder: MakeFolder, words: list[str]) -> None:
    nested = {"vocab_size": 22, "max_position_embeddings": 48}
    target = make_folder("target", words, rows=22, text_config=nested)
    report = check_pair(target, make_folder("draft", words))
    assert (report.target_rows, report.target_max_len) == (22, 48)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(make_folder: MakeFolder, words: list[str], missing: str) -> None:
    target, draft = make_folder("target", words), make_folder("draft", words)
    (draft / missing).unlink()
    with pytest.raises(ModelError, match=missing.replace("model.", "")):
        check_pair(target, draft)


def test_cut_weights_are_noticed(make_folder: MakeFolder, words: list[str]) -> None:
    target, draft = make_folder("target", words), make_folder("draft", words)
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ModelError, match="is damaged"):
        check_pair(target, draft)


def test_pickled_weights_are_refused(make_folder: MakeFolder, words: list[str]) -> None:
    target, draft = make_folder("target", words), make_folder("draft", words)
    (draft / "model.safetensors").rename(draft / "pytorch_model.bin")
    with pytest.raises(ModelError, match="never read from pickle"):
        check_pair(target, draft)


def test_the_demo_target_fits_itself(demo_target_folder: Path) -> None:
    report = check_pair(demo_target_folder, demo_target_folder)
    assert (report.vocab_size, report.target_max_len) == (49_152, 8_192)
    assert (report.masked_ids, report.warnings) == ((), ())


def test_the_demo_pair_fits(demo_target_folder: Path, demo_draft_folder: Path) -> None:
    report = check_pair(demo_target_folder, demo_draft_folder)
    assert (report.vocab_size, report.draft_max_len) == (49_152, 8_192)
    assert (report.masked_ids, report.warnings) == ((), ())
    assert 1_000 < report.num_draft_outputs <= 49_152
