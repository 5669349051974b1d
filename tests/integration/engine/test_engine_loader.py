"""Loading: what is refused and why, reduced output vocabularies, number types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specdist.config import EngineConfig
from specdist.engine import dtypes, packing
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model, prepare
from specdist.engine.sequence import chain_rows
from specdist.errors import ConfigError, ModelError
from tests.integration.engine.engine_rig import close, compute, text, truth
from tests.tiny_models import build_tiny, save_tiny, tiny_config

CONFIG = EngineConfig(kv_cache_bytes=1 << 20)


def test_a_folder_is_loaded_with_its_limits(tmp_path: Path) -> None:
    model = load_model(save_tiny(tmp_path, "qwen3"), dtype="float32", num_threads=1)
    assert torch.get_num_threads() == 1
    assert model.eos_token_ids == {2} and model.max_model_len == 512
    assert (model.vocab_size, model.num_embeddings, model.group_size) == (96, 96, 2)
    engine, tokens = Engine(model, CONFIG), text(12)
    assert close(compute(engine, engine.open("a", tokens)), truth(tokens, "qwen3"))


def test_reduced_output_vocabulary(tmp_path: Path) -> None:
    """B007, B008: the ids travel in the checkpoint; everything else has probability 0."""
    ids = [95, 3, 40, 7]
    model = load_model(
        save_tiny(tmp_path, "llama", output_token_ids=ids), dtype="float32", num_threads=1
    )
    engine, tokens = Engine(model, CONFIG), text(9)
    logits = compute(engine, engine.open("a", tokens))
    assert logits.shape == (9, 96)
    assert close(logits[:, ids], truth(tokens)[:, ids])
    others = [i for i in range(96) if i not in ids]
    assert bool((logits[:, others] == -torch.inf).all())
    narrow = Engine(model, CONFIG, vocab_size=50)
    assert narrow.forward([_one_row(narrow)])[0].isfinite().sum() == 3


@pytest.mark.parametrize("kind", ["llama", "qwen2"])  # without and with biases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_packed_layers_give_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    if not packing.can_pack(dtype):
        pytest.skip(f"this machine has no packed products for {dtype}")
    monkeypatch.setitem(packing.MIN_ELEMENTS, dtype, 0)
    plain, packed = build_tiny(kind).to(dtype), build_tiny(kind).to(dtype)
    assert packing.pack_linears(packed, dtype) == 2 * 7 + 1
    for num_rows in (1, 5, 40):
        ids = torch.tensor([text(num_rows)])
        expected, got = plain(ids).logits.float(), packed(ids).logits.float()
        assert (got - expected).norm() / expected.norm() < (1e-5 if dtype.itemsize == 4 else 0.03)


def _one_row(engine: Engine):  # type: ignore[no-untyped-def]
    seq = engine.open("a", [5])
    engine.reserve(seq, 1)
    return chain_rows(seq, [5], [0])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 2], "unique, but 1 repeat"),
        ([1, 2, 96], "between 0 and 95"),
        ([1, 2], "size mismatch|must be 3"),
    ],
)
def test_a_wrong_reduced_vocabulary_is_refused(
    tmp_path: Path, ids: list[int], message: str
) -> None:
    save_tiny(tmp_path, "llama", output_token_ids=[1, 2, 3])
    state = load_file(tmp_path / "model.safetensors")
    state["specdist.output_token_ids"] = torch.tensor(ids)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path, num_threads=1)


def test_a_reduced_vocabulary_without_its_ids_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", output_token_ids=[1, 2, 3])
    state = load_file(tmp_path / "model.safetensors")
    del state["specdist.output_token_ids"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="cannot load model"):
        load_model(tmp_path, num_threads=1)


def test_pickles_and_missing_folders_are_refused(tmp_path: Path) -> None:
    model = build_tiny("llama")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ModelError, match="cannot load model"):
            load_model(path, num_threads=1)


def _tiny(config_class: type, **more: object) -> transformers.PreTrainedModel:
    config = config_class(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        pad_token_id=2,
        **more,
    )
    return transformers.AutoModelForCausalLM.from_config(config).float()


def test_attention_sinks_are_refused() -> None:
    model = _tiny(transformers.GptOssConfig, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(ModelError, match="s_aux, which is not implemented"):
        prepare(model)


def test_recurrent_layers_are_refused() -> None:
    model = _tiny(transformers.Lfm2Config, layer_types=["conv", "full_attention"])
    with pytest.raises(ModelError, match="layers of type conv"):
        prepare(model)


def test_models_without_pluggable_attention_are_refused() -> None:
    config = transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=2)
    with pytest.raises(ModelError, match="pluggable attention"):
        prepare(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
        },
    ],
)
def test_rope_that_depends_on_the_batch_is_refused(rope: dict[str, object]) -> None:
    config = tiny_config("llama")
    config.rope_parameters = rope
    with pytest.raises(ModelError, match=f"RoPE scaling '{rope['rope_type']}'"):
        prepare(transformers.AutoModelForCausalLM.from_config(config))


def test_non_causal_attention_is_refused() -> None:
    config = tiny_config("gemma3")
    config.use_bidirectional_attention = True
    with pytest.raises(ModelError, match="is_causal=False"):
        prepare(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2"}, torch.float32),
        ({"avx2", "avx512f"}, torch.float32),
        ({"avx512_bf16"}, torch.bfloat16),
        ({"amx_bf16"}, torch.bfloat16),
    ],
)
def test_auto_dtype_follows_the_processor(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: torch.dtype
) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", lambda: frozenset(flags))
    assert dtypes.resolve_dtype("auto", torch.device("cpu")) == expected
    assert dtypes.resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert dtypes.resolve_dtype("float16", torch.device("cpu")) == torch.float16


def test_unusable_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cpu or cuda, got 'mps'"):
        load_model(tmp_path, device="mps")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no usable CUDA device"):
            load_model(tmp_path, device="cuda:0")
