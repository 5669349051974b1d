"""The distillation pipeline on a tiny random target: every stage, resume, export."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from specdist.distill.data import (
    Example,
    collate,
    epoch_batches,
    read_shards,
    shared_prefix_len,
    split_held_out,
    token_counts,
    write_shard,
)
from specdist.distill.evaluate import evaluate
from specdist.distill.export import export_student, load_export
from specdist.distill.generate import Job, answer_batch
from specdist.distill.student import (
    Student,
    build_student,
    choose_output_tokens,
    expected_counts,
    warm_start,
)
from specdist.distill.train import TrainConfig, Trainer, learning_rate

VOCAB, EOS = 96, 2


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=EOS,
        tie_word_embeddings=True,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def answered(target: LlamaForCausalLM, num: int = 12, greedy: bool = False) -> list[Example]:
    generator = torch.Generator().manual_seed(1)
    prompts = [[1, 5, 6] + [7 + (i * j) % 80 for j in range(1 + i % 4)] for i in range(num)]
    jobs = [Job(p, 0.0 if greedy or i % 3 == 0 else 0.8) for i, p in enumerate(prompts)]
    results = answer_batch(target, jobs, 10, EOS, generator)
    return [
        Example(r.tokens.long(), r.hidden, r.answer_start, j.temperature, "toy")
        for r, j in zip(results, jobs, strict=True)
    ]


def make_student(target: LlamaForCausalLM, examples: list[Example]) -> Student:
    torch.manual_seed(3)
    answers, prompts = token_counts(examples, VOCAB)
    return build_student(target, [0, 3], choose_output_tokens(answers, prompts, [0, 1, 2], 64))


def make_trainer(target: LlamaForCausalLM, examples: list[Example], steps: int = 6) -> Trainer:
    config = TrainConfig(
        num_steps=steps, batch_size=5, learning_rate=3e-3, warmup_steps=2, checkpoint_steps=3
    )
    prefix_len = shared_prefix_len(examples)
    student = make_student(target, examples)
    return Trainer(student, target.lm_head.weight, examples, config, prefix_len)


def test_batched_greedy_answers_equal_the_models_own_one_by_one(target: LlamaForCausalLM) -> None:
    for example in answered(target, greedy=True):
        prompt = example.tokens[: example.answer_start]
        mask = torch.ones_like(prompt)[None]
        alone = target.generate(
            prompt[None], attention_mask=mask, max_new_tokens=10, do_sample=False
        )[0]
        assert example.tokens.tolist() == alone.tolist()


def test_stored_hidden_states_give_the_targets_logits(target: LlamaForCausalLM) -> None:
    for example in answered(target):
        wanted = target(example.tokens[None, :-1]).logits[0]
        stored = example.hidden.float() @ target.lm_head.weight.T
        torch.testing.assert_close(stored, wanted, atol=0.05, rtol=0.01)


def test_shards_come_back_as_written(target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = answered(target)
    write_shard(tmp_path / "shard-00000.safetensors", examples[:7])
    write_shard(tmp_path / "shard-00001.safetensors", examples[7:])
    for before, after in zip(examples, read_shards(tmp_path), strict=True):
        assert torch.equal(before.tokens, after.tokens)
        assert torch.equal(before.hidden, after.hidden)
        assert after[2:] == (before.answer_start, pytest.approx(before.temperature), "toy")


def test_no_shards_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected shard-\*\.safetensors"):
        read_shards(tmp_path)


def test_the_split_goes_by_prompt_and_stays_while_data_grow(target: LlamaForCausalLM) -> None:
    examples = answered(target, num=40)
    training, held_out = split_held_out(examples + answered(target, num=12), 0.3)
    sides = [{tuple(e.tokens[: e.answer_start].tolist()) for e in s} for s in (training, held_out)]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    _, fewer = split_held_out(examples[:20], 0.3)
    assert {id(e) for e in fewer} <= {id(e) for e in held_out}


def test_weights_mark_answers_prompts_and_padding(target: LlamaForCausalLM) -> None:
    examples = answered(target)
    assert shared_prefix_len(examples) >= 3
    batch = collate(examples, prompt_weight=0.25, prefix_len=3)
    for row, example in enumerate(examples):
        size, start = len(example.tokens) - 1, example.answer_start
        wanted = [0.0] * 2 + [0.25] * (start - 3) + [1.0] * (size - start + 1)
        assert batch.weights[row].tolist() == wanted + [0.0] * (batch.weights.shape[1] - size)


def test_an_epoch_holds_every_example_once_and_repeats_by_seed(target: LlamaForCausalLM) -> None:
    examples = answered(target)
    passes = [list(epoch_batches(examples, 5, seed=0, epoch=e)) for e in (0, 0, 1)]
    ids = [[[id(e) for e in batch] for batch in batches] for batches in passes]
    assert sorted(i for batch in ids[0] for i in batch) == sorted(id(e) for e in examples)
    assert ids[0] == ids[1] != ids[2]


def test_output_tokens_are_sorted_unique_special_first() -> None:
    answers = torch.tensor([0, 0, 0, 9, 0, 3, 1, 1, 0, 0])
    prompts = torch.tensor([0, 0, 0, 0, 0, 0, 0, 5, 2, 0])
    assert choose_output_tokens(answers, prompts, [0, 2], 5).tolist() == [0, 2, 3, 5, 7]
    assert choose_output_tokens(answers, prompts, [0, 2], 7).tolist() == [0, 2, 3, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="output size must be from 2 to 10, got 11"):
        choose_output_tokens(answers, prompts, [0, 2], 11)


def test_expected_counts_sum_the_targets_law(target: LlamaForCausalLM) -> None:
    examples = answered(target)
    total = sum(len(e.tokens) - e.answer_start for e in examples)
    counts = expected_counts(examples, target.lm_head.weight, max_positions=total)
    assert counts.sum().item() == pytest.approx(total, rel=1e-4)
    fewer = expected_counts(examples, target.lm_head.weight, max_positions=total // 3)
    assert 0 < fewer.sum().item() <= total // 3 + len(examples)


def test_warm_start_takes_over_layers_and_shared_head_rows(target: LlamaForCausalLM) -> None:
    earlier = build_student(target, [0, 3], torch.arange(0, 60, 2))
    with torch.no_grad():
        earlier.lm_head.weight += 1.0
    student = build_student(target, [1, 2], torch.arange(0, 60, 3))
    assert warm_start(student, earlier) == 10
    head, rows = student.lm_head.weight, target.lm_head.weight
    torch.testing.assert_close(head[2], rows[6] + 1.0)
    torch.testing.assert_close(head[1], rows[3])
    layer = student.model.layers[1].mlp.up_proj.weight
    torch.testing.assert_close(layer, target.model.layers[3].mlp.up_proj.weight)


def test_layer_indexes_are_checked(target: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match=r"must be below 4, got \[4\]"):
        build_student(target, [0, 4], torch.arange(8))


def test_a_full_student_agrees_with_its_target(target: LlamaForCausalLM) -> None:
    student = build_student(target, [0, 1, 2, 3], torch.arange(VOCAB))
    agreement = evaluate(student, target.lm_head.weight, answered(target))["all"]
    assert agreement.top1 > 0.98
    assert agreement.overlap == pytest.approx(1.0, abs=0.02)
    assert agreement.covered == pytest.approx(1.0, abs=1e-4)


def test_training_lowers_the_loss_and_leaves_the_embeddings(target: LlamaForCausalLM) -> None:
    examples = answered(target)
    before = target.model.embed_tokens.weight.clone()
    trainer = make_trainer(target, examples, steps=40)
    first = trainer._one_step(examples)
    for _ in range(39):
        last = trainer._one_step(examples)
    assert last < 0.7 * first
    assert torch.equal(trainer.student.model.embed_tokens.weight, before)


def test_a_resumed_run_equals_an_unbroken_one(target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = answered(target)
    whole = make_trainer(target, examples)
    whole.run(tmp_path / "whole")
    first = make_trainer(target, examples)
    first.run(tmp_path / "parts", until=4)
    second = make_trainer(target, examples)
    assert second.resume(tmp_path / "parts")
    assert second.step == 4
    second.run(tmp_path / "parts")
    for (name, a), (_, b) in zip(whole._named(), second._named(), strict=True):
        assert torch.equal(a, b), name


def test_resume_refuses_another_output_vocabulary(target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = answered(target)
    trainer = make_trainer(target, examples)
    assert not trainer.resume(tmp_path)
    trainer.run(tmp_path, until=1)
    trainer.student.output_token_ids = torch.arange(64) + 1
    with pytest.raises(ValueError, match="another output vocabulary"):
        trainer.resume(tmp_path)


def test_learning_rate_warms_up_and_falls() -> None:
    config = TrainConfig(num_steps=100, warmup_steps=10, learning_rate=1.0, min_learning_rate=0.1)
    rates = [learning_rate(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(math.isfinite(r) for r in rates)


def test_export_has_the_shipped_layout_and_loads(target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = answered(target)
    student = make_student(target, examples)
    export_student(student, tmp_path, "toy")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert "model.embed_tokens.weight" not in names
        assert {"model.norm.weight", "lm_head.weight", "specdist.output_token_ids"} <= names
        assert file.get_tensor("specdist.output_token_ids").dtype == torch.int64
        assert file.get_tensor("lm_head.weight").dtype == torch.bfloat16
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["specdist"] == {"embeddings": "target", "target": "toy"}
    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (2, False)
    assert (config["model_type"], config["vocab_size"]) == ("llama", VOCAB)
    loaded = load_export(tmp_path, target.model.embed_tokens.weight)
    inputs = examples[0].tokens[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(inputs), student(inputs), atol=0.1, rtol=0.05)
