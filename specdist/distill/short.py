"""A short distillation from start to end: answers, training, export, figures.

    python -m specdist.distill.short --target FOLDER --prompts FOLDER --work FOLDER --out FOLDER

Every stage goes on where it stopped: shards and the training checkpoint stay in ``--work``.
Joins the other modules of this package; a full tool replaces it. Called from the command line.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from specdist.distill.collect import CollectConfig, Collector
from specdist.distill.data import (
    Example,
    read_shards,
    shared_prefix_len,
    split_held_out,
    token_counts,
)
from specdist.distill.evaluate import Agreement, evaluate
from specdist.distill.export import export_student, load_export
from specdist.distill.prompts import load_corpora
from specdist.distill.student import (
    Student,
    build_student,
    choose_output_tokens,
    expected_counts,
    warm_start,
)
from specdist.distill.train import TrainConfig, Trainer

log = logging.getLogger(__name__)
STAGES = ("generate", "train", "export", "evaluate")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The settings; the shipped draft's model card says which ones it was made with."""
    parser = argparse.ArgumentParser(prog="python -m specdist.distill.short", description=__doc__)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder of the target (Hugging Face format)")
    add("--prompts", type=Path, help="folder of the prompt texts (stage generate)")
    add("--work", type=Path, required=True, help="folder for shards and checkpoints")
    add("--out", type=Path, required=True, help="folder of the exported draft")
    add("--target-name", default="demo", help="name of the target in the exported config")
    add("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--generate-minutes", type=float, default=25.0)
    add("--generate-batch", type=int, default=64)
    add("--max-new-tokens", type=int, default=160)
    add(
        "--layers", type=int, nargs="+", default=[0, 10, 20, 29], help="target layers to start from"
    )
    add("--start-from", type=Path, help="folder of an earlier export to go on from")
    add("--outputs", type=int, default=8192, help="size of the output vocabulary")
    add("--held-out", type=float, default=0.08, help="share of prompts kept for the figures")
    add("--train-steps", type=int, default=600)
    add("--train-batch", type=int, default=8, help="examples in a step")
    add("--learning-rate", type=float, default=1e-3)
    add("--prompt-weight", type=float, default=0.1)
    args = parser.parse_args(argv)
    if "generate" in args.stages and args.prompts is None:
        parser.error("--prompts is needed for the stage generate")
    return args


def generate(args: argparse.Namespace, target: PreTrainedModel) -> None:
    """Stage 1: shards of the target's answers in ``work/shards``."""
    config = CollectConfig(
        seed=args.seed,
        batch_size=args.generate_batch,
        max_new_tokens=args.max_new_tokens,
        minutes=args.generate_minutes,
    )
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    Collector(target, tokenizer, load_corpora(args.prompts), config).run(args.work / "shards")


def load_split(args: argparse.Namespace) -> tuple[list[Example], list[Example]]:
    """(training, held out) examples."""
    return split_held_out(read_shards(args.work / "shards"), args.held_out)


def make_trainer(
    args: argparse.Namespace, target: PreTrainedModel, examples: Sequence[Example]
) -> Trainer:
    """A trainer at the last checkpoint in ``work/train``, or a fresh one."""
    student = build_student(target, args.layers, _output_token_ids(args, target, examples))
    if args.start_from is not None:
        earlier = load_export(args.start_from, target.get_input_embeddings().weight)
        log.info("start from %s: %d shared outputs", args.start_from, warm_start(student, earlier))
    config = TrainConfig(
        num_steps=args.train_steps,
        batch_size=args.train_batch,
        learning_rate=args.learning_rate,
        prompt_weight=args.prompt_weight,
        seed=args.seed,
    )
    prefix_len = shared_prefix_len(examples)
    trainer = Trainer(student, target.lm_head.weight, examples, config, prefix_len)
    if trainer.resume(args.work / "train"):
        log.info("resumed at step %d", trainer.step)
    return trainer


def _output_token_ids(
    args: argparse.Namespace, target: PreTrainedModel, examples: Sequence[Example]
) -> Tensor:
    """The output vocabulary: chosen once, then read from ``work/outputs.safetensors``."""
    path = args.work / "outputs.safetensors"
    if path.exists():
        return load_file(path)["output_token_ids"]
    answers, prompts = token_counts(examples, target.config.vocab_size)
    num_tokens, num_different = int(answers.sum()), int((answers > 0).sum())
    log.info("%d examples, %d tokens, %d different", len(examples), num_tokens, num_different)
    expected = expected_counts(examples, target.lm_head.weight, max_positions=20_000)
    special = AutoTokenizer.from_pretrained(args.target).all_special_ids
    ids = choose_output_tokens(expected, prompts, special, args.outputs)
    save_file({"output_token_ids": ids}, path)
    return ids


def report(figures: Mapping[str, Agreement], path: Path) -> None:
    """Log the figures and write them as JSON."""
    for name, agreement in figures.items():
        log.info("%-12s %s", name, agreement)
    text = json.dumps({name: asdict(a) for name, a in figures.items()}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def train(args: argparse.Namespace, target: PreTrainedModel) -> Student:
    """Stage 2: train to ``--train-steps``, with checkpoints in ``work/train``."""
    examples, held_out = load_split(args)
    trainer = make_trainer(args, target, examples)
    head = target.lm_head.weight

    def on_checkpoint(step: int) -> None:
        log.info("step %d: %s", step, evaluate(trainer.student, head, held_out[:16])["all"])

    trainer.run(args.work / "train", on_checkpoint)
    return trainer.student


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages that were asked for."""
    args = parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    target.requires_grad_(False)
    if "generate" in args.stages:
        generate(args, target)
    if "train" in args.stages:
        train(args, target)
    if "export" in args.stages:
        examples, _ = load_split(args)
        export_student(make_trainer(args, target, examples).student, args.out, args.target_name)
    if "evaluate" in args.stages:
        student = load_export(args.out, target.get_input_embeddings().weight)
        _, held_out = load_split(args)
        report(evaluate(student, target.lm_head.weight, held_out), args.work / "agreement.json")


if __name__ == "__main__":
    main()
