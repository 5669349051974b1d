"""Every form of a model's name, and what each wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdist.config import EngineConfig
from specdist.errors import ModelError
from specdist.models import demo, resolve_model
from specdist.models.checkpoint import read_tensors
from specdist.models.memory import memory_need
from tests.unit.models.conftest import MakeFolder


def test_local_folder_is_taken_as_it_is(make_folder: MakeFolder, words: list[str]) -> None:
    folder = make_folder("target", words)
    assert resolve_model(folder) == resolve_model(str(folder)) == folder


def test_folder_without_weights_is_refused(make_folder: MakeFolder, words: list[str]) -> None:
    folder = make_folder("target", words)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no safetensors weights"):
        resolve_model(folder)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is no model folder: it has no config\.json"):
        resolve_model(tmp_path)


@pytest.mark.parametrize("name", ["", "demmo", "/no/such/folder", "a/b/c"])
def test_unknown_name_is_told_the_forms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError):
        resolve_model(name or "./nothing-here")


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK..")
    with pytest.raises(ModelError, match="is no GGUF file"):
        resolve_model(file)


def test_broken_gguf_is_refused_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDIST_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelError, match="cannot read GGUF file"):
        resolve_model(file)
    assert [p.suffix for p in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_hub_without_network_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot get model 'no-such-owner/x' from .* hub"):
        resolve_model("no-such-owner/x")


def test_demo_target_is_the_pinned_model(demo_target_folder: Path) -> None:
    tensors = read_tensors(demo_target_folder)
    assert len(tensors) == 272
    assert tensors["model.embed_tokens.weight"].shape == (49_152, 576)
    assert {tensor.dtype for tensor in tensors.values()} == {"F32"}
    states = {state.name: state for state in demo.list_states()}
    assert states["demo"].ready and states["demo"].num_bytes > 500_000_000


def test_demo_target_speaks_its_own_tokens(demo_target_folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_target_folder / "tokenizer.json"))
    assert tokenizer.encode("🦙").ids == [10813, 116, 243]
    assert tokenizer.id_to_token(2) == "<|im_end|>"


TEN_BLOCKS = 10 * 16 * 46_080  # bytes


def test_memory_of_the_demo_target(demo_target_folder: Path) -> None:
    need = memory_need(
        demo_target_folder, EngineConfig(dtype="float32", kv_cache_bytes=TEN_BLOCKS + 1)
    )
    assert need.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4 == 46_080
    assert (need.num_kv_tokens, need.kv_cache_bytes) == (160, TEN_BLOCKS)
    assert need.weights_bytes == 134_515_008 * 4


def test_kv_cache_too_small_for_the_wanted_length(demo_target_folder: Path) -> None:
    config = EngineConfig(dtype="float32", kv_cache_bytes=TEN_BLOCKS, max_model_len=200)
    with pytest.raises(ModelError, match="holds 160 tokens, max_model_len is 200"):
        memory_need(demo_target_folder, config)


def test_more_than_the_device_has_is_refused(
    demo_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdist.engine.memory.free_bytes", lambda device: 600_000_000)
    config = EngineConfig(dtype="float32", kv_cache_bytes=100_000_000)
    with pytest.raises(ModelError, match=r"0\.50 GiB for weights.* cpu has 0\.56 GiB free"):
        memory_need(demo_target_folder, config)
