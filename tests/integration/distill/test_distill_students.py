"""Students of every family: begun, trained, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specdist.distill.agreement import evaluate, prepare
from specdist.distill.dataset import Dataset, load_dataset, snapshot
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.settings import DistillSettings
from specdist.distill.student import Student, build_student, layer_numbers, read_checkpoint
from specdist.distill.teacher import Teacher
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model
from specdist.engine.sequence import chain_rows
from specdist.errors import ConfigError, ModelError
from specdist.models import check_pair
from specdist.models.shipped import complete_draft
from tests.byte_folders import VOCAB, save_byte_folder
from tests.integration.distill.distill_rig import run, settings_for
from tests.tiny_models import KINDS


def teacher_of(folder: Path) -> Teacher:
    return Teacher(folder, "cpu", "float32", HiddenCache(folder, 0))


def student_of(teacher: Teacher, ids: list[int] | None = None, **settings: object) -> Student:
    given = DistillSettings(target="t", out="o", **settings)  # type: ignore[arg-type]
    return build_student(given, teacher, None if ids is None else torch.tensor(ids))


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_of_all_layers_is_the_target(kind: str, tmp_path: Path) -> None:
    folder = save_byte_folder(tmp_path / kind, kind, layers=3)
    teacher = teacher_of(folder)
    ids = list(range(0, VOCAB, 2))
    student = student_of(teacher, ids, layers=(0, 1, 2))
    inputs = torch.arange(3, 23)[None]
    with torch.no_grad():
        mine = student.logits(student.states(inputs)[0])
        theirs = teacher.model(input_ids=inputs).logits[0]
    torch.testing.assert_close(mine, theirs[:, ids], atol=1e-4, rtol=1e-4)
    states = teacher.compute([torch.arange(3, 24).numpy()])[0]
    torch.testing.assert_close(teacher.logits(states), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "gemma3"])
def test_families_from_layers_and_smaller_go_all_the_way(kind: str, tmp_path: Path) -> None:
    folder = save_byte_folder(tmp_path / "t", kind, layers=3)
    data = tmp_path / "a" / "data"
    few = {"num_tokens": 250, "num_steps": 2, "output_vocab": "128"}
    run(folder, tmp_path / "a", layers=(0, 2), slim=True, **few)
    small = {"layers": None, "new": "hidden=16,layers=2,heads=2", "slim": False}
    run(
        folder,
        tmp_path / "b",
        data=str(data),
        on_policy_share=1.0,
        on_policy_start=0.0,
        **few | small,
    )
    for out, hidden in (("a", 32), ("b", 16)):
        config = json.loads((tmp_path / out / "draft" / "config.json").read_text())
        assert (config["hidden_size"], config["num_hidden_layers"]) == (hidden, 2)
        assert check_pair(folder, tmp_path / out / "draft").num_draft_outputs == 128
    if kind == "gemma3":
        kinds = json.loads((folder / "config.json").read_text())["layer_types"]
        config = json.loads((tmp_path / "a" / "draft" / "config.json").read_text())
        assert config["layer_types"] == [kinds[0], kinds[2]]


@pytest.fixture(scope="module")
def trained(target: Path, answered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    settings = {"data": str(answered), "slim": True, "output_vocab": "100", "target_name": "x"}
    run(target, out, **settings)
    return out


def test_the_slim_draft_completed_is_the_full_one(
    target: Path, trained: Path, tmp_path: Path
) -> None:
    complete_draft(trained / "draft-slim", target, tmp_path)
    full = load_file(trained / "draft" / "model.safetensors")
    again = load_file(tmp_path / "model.safetensors")
    assert full.keys() == again.keys()
    for name, tensor in full.items():
        assert torch.equal(tensor, again[name].to(tensor.dtype)), name
    note = json.loads((trained / "draft-slim" / "config.json").read_text())["specdist"]
    assert note == {"embeddings": "target", "target": "x"}


def test_the_engine_runs_the_draft_as_the_student(trained: Path) -> None:
    folder = trained / "draft"
    model, ids = read_checkpoint(folder)
    assert ids is not None
    tokens = list(range(10, 40))
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([tokens])).logits[0]
    loaded = load_model(folder, "cpu", "float32", 1)
    engine = Engine(loaded, settings_engine(), VOCAB)
    sequence = engine.open("s", tokens)
    engine.reserve(sequence, len(tokens))
    logits = engine.forward([chain_rows(sequence, tokens, range(len(tokens)))])[0]
    torch.testing.assert_close(logits[:, ids], wanted, atol=1e-3, rtol=1e-3)
    others = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, ids, False)
    assert bool((logits[:, others] == -torch.inf).all())


def settings_engine():  # type: ignore[no-untyped-def]
    from specdist.config import EngineConfig

    return EngineConfig(kv_cache_bytes=1 << 24, max_model_len=64, num_threads=1)


def test_the_record_of_a_run_is_complete(trained: Path) -> None:
    record = json.loads((trained / "provenance.json").read_text())
    assert record["command"].startswith("specdist distill --target ")
    assert "--slim" in record["command"] and "--num-steps 6" in record["command"]
    assert set(record["draft_sha256"]) == {"draft", "draft-slim"}
    assert all(len(h) == 64 for h in record["data"]["shards_sha256"].values())
    assert record["figures"]["all"]["positions"] > 50
    steps = [row["step"] for row in record["curve"]]
    assert steps == [0, 3, 6]
    card = (trained / "draft" / "README.md").read_text()
    for heading in ("What it is", "How it was made", "Figures", "Learning curve", "Limits"):
        assert f"## {heading}" in card
    page = (trained / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page, "nothing is fetched from elsewhere"


def test_going_on_from_a_checkpoint(target: Path, answered: Path, trained: Path) -> None:
    teacher = teacher_of(target)
    draft, own = read_checkpoint(trained / "draft")
    assert own is not None
    kept = student_of(teacher, start_from=str(trained / "draft"))
    assert kept.output_token_ids is not None and torch.equal(kept.output_token_ids, own)
    wanted = [*own[:50].tolist(), *(i for i in range(VOCAB) if i not in own)][:90]
    other = student_of(
        teacher, sorted(wanted), start_from=str(trained / "draft"), output_vocab="90"
    )
    head, old = other.model.get_output_embeddings().weight, draft.get_output_embeddings().weight
    for row, token in enumerate(sorted(wanted)):
        place = (own == token).nonzero()
        source = old[place[0, 0]] if len(place) else teacher.head.weight[token]
        assert torch.equal(head[row], source)


def data_of(answered: Path) -> Dataset:
    return load_dataset(answered, snapshot(answered, answered.parent / "train"), None, 0.2)


def test_figures_of_the_target_itself_are_perfect(target: Path, answered: Path) -> None:
    teacher = teacher_of(target)
    held_out = prepare(teacher, data_of(answered).held_out)
    figures = evaluate(student_of(teacher, layers=(0, 1, 2, 3)), teacher, held_out, "tv")
    for name in ("top1", "top8", "overlap1", "overlap0.7", "covered"):
        assert figures["all"][name] == pytest.approx(1, abs=1e-3), name
    assert figures["all"]["loss"] == pytest.approx(0, abs=1e-3)
    assert figures["greedy"]["depth1"] == pytest.approx(1, abs=1e-3)
    assert figures["greedy"]["chain5"] > 4.5, "six tokens a step but at the ends"
    assert figures["greedy"]["positions"] == figures["all"]["chain_positions"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": (0, 9)}, "layers must be from 0 to 3, got 9"),
        ({"new": "hidden=16,depth=2"}, "new must be NAME=NUMBER of hidden"),
        ({"new": "hidden=18,heads=4"}, "hidden 18 must be a multiple of heads 4"),
        ({"new": "hidden=16,heads=4", "embeddings": "target"}, "embeddings target needs a student"),
    ],
)
def test_impossible_students(settings: dict[str, object], message: str, target: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        student_of(teacher_of(target), **settings)


def test_default_layers_are_spread(target: Path) -> None:
    config = teacher_of(target).config
    config.num_hidden_layers = 30
    settings = settings_for(target, target, layers=None)
    assert layer_numbers(settings, config) == (0, 10, 19, 29)


def test_slim_needs_the_targets_embeddings(target: Path, answered: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="slim needs embeddings target"):
        run(target, tmp_path, data=str(answered), embeddings="own", slim=True, num_steps=1)


def test_a_training_that_diverges_stops_with_advice(
    target: Path, answered: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="lower learning_rate"):
        run(target, tmp_path, data=str(answered), learning_rate=1e9, warmup_steps=0, num_steps=9)


def test_another_setting_is_refused_by_name(target: Path, trained: Path, answered: Path) -> None:
    options = {"data": str(answered), "slim": True, "output_vocab": "100", "target_name": "x"}
    with pytest.raises(ConfigError, match="made with loss 'forward_kl', now it is 'tv'"):
        run(target, trained, only="train", loss="tv", **options)


def test_a_pause_keeps_the_schedule(target: Path, answered: Path, tmp_path: Path) -> None:
    options = {"data": str(answered), "num_steps": 8}
    run(target, tmp_path / "whole", only="train", **options)
    while not (tmp_path / "paused" / "draft").exists():  # one step each time
        run(target, tmp_path / "paused", max_minutes=1e-9, **options)
    whole, paused = (
        load_file(tmp_path / name / "train" / "checkpoint.safetensors")
        for name in ("whole", "paused")
    )
    assert all(torch.equal(whole[name], paused[name]) for name in whole)


def test_the_data_curve(target: Path, answered: Path, tmp_path: Path) -> None:
    run(target, tmp_path, data=str(answered), data_curve=True, num_steps=8)
    points = json.loads((tmp_path / "train" / "curve.json").read_text())
    amounts = [p["answer_tokens"] for p in points]
    assert amounts == sorted(amounts) and len(set(amounts)) == 3
    assert {p["steps"] for p in points} == {2}
    assert "Short trainings on parts" in (tmp_path / "draft" / "README.md").read_text()
