"""Greedy answers, float32: speculation on = off = transformers.generate, token by token.

    python benchmarks/exactness.py --prompts PATH/spec_bench_dev.jsonl --out benchmarks/results

Starts the whole application for every combination below, sends each prompt through gRPC
with speculation on, and compares token ids with the same server's plain answers and with
transformers. Where ids differ, the gap between the two largest logits at that place is
computed with transformers and listed: below 1e-3 it is a tie in floating point, anything
else is an error and the exit status is 1.

Combinations: the shipped draft, the target as its own draft, an always-wrong draft; block
sizes 1, 16, 64; trees of 4 to 32 nodes and chains; draft-ahead on and off; gamma 1 to 8.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import specdist
from specdist.bench.served import ServedApp
from specdist.client import Client
from specdist.models import resolve_model

TIE = 1e-3
CONCURRENCY = 16
CHAT = "Count from 1 to 10, separated by commas. Output only the numbers."
REFERENCE_PROMPTS: dict[str, Any] = {
    "P-COUNT": [{"role": "user", "content": CHAT}],
    "P-NUMS": "1, 2, 3, 4, 5,",
    "P-HA": "ha ha ha ha ha ha",
    "P-OHM": "Ω Ω Ω Ω Ω Ω Ω Ω",
    "P-PARIS": "The capital of France is",
    "P-FOX": "The quick brown fox jumps over the lazy dog. "
    "The quick brown fox jumps over the lazy dog. The quick",
    "P-LLAMA": "🦙 🦙 🦙 🦙 🦙 🦙",
    "P-HI": [{"role": "user", "content": "Say hi."}],
}


@dataclass(frozen=True)
class Combination:
    """One start of the application, and the gammas that are asked of it."""

    draft: str  # shipped, self, wrong
    block_size: int
    mode: str
    max_tree_nodes: int
    draft_ahead: bool
    gammas: tuple[int, ...]


COMBINATIONS = (
    Combination("shipped", 16, "tree", 32, False, (5, 8)),
    Combination("shipped", 1, "tree", 4, True, (1, 4)),
    Combination("shipped", 64, "fixed", 8, True, (2, 3, 6, 7)),
    Combination("wrong", 1, "fixed", 8, True, (2, 5, 7)),
    Combination("wrong", 16, "tree", 8, False, (3, 6)),
    Combination("wrong", 64, "tree", 4, True, (1, 4, 8)),
    Combination("self", 1, "tree", 16, False, (2, 5, 8)),
    Combination("self", 16, "tree", 8, True, (3, 6)),
    Combination("self", 64, "fixed", 8, False, (1, 4, 7)),
)


@dataclass(frozen=True)
class Difference:
    """The first place where an answer left the reference."""

    prompt: str
    against: str
    position: int
    got: int
    expected: int
    gap: float

    @property
    def is_tie(self) -> bool:
        return self.gap < TIE


class Reference:
    """transformers in float32: greedy answers, and logit gaps."""

    def __init__(self, folder: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        ids = torch.tensor([list(prompt_ids)])
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                use_cache=True,
            )
        return tuple(out[0, len(prompt_ids) :].tolist())

    def gap(self, tokens: Sequence[int]) -> float:
        with torch.inference_mode():
            logits = self._model(torch.tensor([list(tokens)])).logits[0, -1]
        best = logits.topk(2).values
        return float(best[0] - best[1])


def spec_bench_prompts(path: Path, count: int) -> dict[str, Any]:
    """Prompts spread evenly over the file; single turns as chats."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    step = len(lines) / count
    chosen = [lines[int(i * step)] for i in range(count)]
    return {
        f"spec-{item['question_id']}": [{"role": "user", "content": item["turns"][0]}]
        for item in chosen
    }


def wrong_draft(target: Path, folder: Path) -> Path:
    """A random model over the target's vocabulary: right by accident only."""
    config = transformers.AutoConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    config.tie_word_embeddings = False
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (target / name).exists():
            (folder / name).write_bytes((target / name).read_bytes())
    return folder


def answers(
    address: str, prompts: dict[str, Any], max_tokens: int, speculation: dict[str, Any]
) -> dict[str, Any]:
    """All prompts through gRPC, a few at a time."""
    with Client(address, timeout_s=1200) as client, ThreadPoolExecutor(CONCURRENCY) as pool:

        def ask(prompt: Any) -> Any:
            return client.generate(
                prompt, max_tokens=max_tokens, temperature=0.0, speculation=speculation
            )

        return dict(zip(prompts, pool.map(ask, prompts.values()), strict=True))


def compare(
    got: dict[str, Any],
    expected: dict[str, tuple[int, ...]],
    against: str,
    prompt_ids: dict[str, tuple[int, ...]],
    reference: Reference,
) -> Iterator[Difference]:
    for name, answer in got.items():
        mine, theirs = answer.token_ids, expected[name]
        if mine == theirs:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
            min(len(mine), len(theirs)),
        )
        gap = reference.gap([*prompt_ids[name], *mine[:place]])
        at = [ids[place] if place < len(ids) else -1 for ids in (mine, theirs)]
        yield Difference(name, against, place, at[0], at[1], gap)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    target = resolve_model("demo")
    prompts = dict(REFERENCE_PROMPTS)
    prompts.update(spec_bench_prompts(options.prompts, options.num_prompts))
    reference = Reference(target)
    rows: list[dict[str, Any]] = []
    expected: dict[str, tuple[int, ...]] = {}
    prompt_ids: dict[str, tuple[int, ...]] = {}
    with tempfile.TemporaryDirectory() as folder:
        drafts = {
            "shipped": "demo-draft",
            "self": "demo",
            "wrong": str(wrong_draft(target, Path(folder))),
        }
        for combination in COMBINATIONS:
            with ServedApp(settings(combination, drafts[combination.draft])) as app:
                if not expected:
                    with Client(app.grpc_address) as client:
                        prompt_ids = {n: client.tokenize(p).token_ids for n, p in prompts.items()}
                    expected = reference_answers(reference, prompt_ids, options)
                rows += measure(app, combination, prompts, expected, prompt_ids, reference, options)
            write(options, rows)
    return rows


def reference_answers(
    reference: Reference, prompt_ids: dict[str, tuple[int, ...]], options: argparse.Namespace
) -> dict[str, tuple[int, ...]]:
    """transformers' answers; kept in a file beside the results, since they take minutes."""
    path = options.out / "exactness_reference.json"
    key = {
        "max_tokens": options.max_tokens,
        "prompt_ids": {n: list(i) for n, i in prompt_ids.items()},
    }
    if path.exists():
        known = json.loads(path.read_text())
        if known["key"] == key:
            return {name: tuple(ids) for name, ids in known["answers"].items()}
    answers = {name: reference.answer(ids, options.max_tokens) for name, ids in prompt_ids.items()}
    path.write_text(json.dumps({"key": key, "answers": answers}) + "\n")
    return answers


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """What is known so far: a run that is stopped keeps its finished combinations."""
    result = {"environment": environment(), "max_tokens": options.max_tokens, "rows": rows}
    (options.out / "exactness.json").write_text(json.dumps(result, indent=1) + "\n")


def settings(combination: Combination, draft: str) -> dict[str, Any]:
    common = {"dtype": "float32", "block_size": combination.block_size}
    return {
        "target": common,
        "draft": {**common, "model": draft},
        "speculation": {
            "mode": combination.mode,
            "num_speculative_tokens": 8,
            "max_tree_nodes": combination.max_tree_nodes,
            "draft_ahead": combination.draft_ahead,
            "max_wait_s": 2.0,
        },
    }


def measure(
    app: ServedApp,
    combination: Combination,
    prompts: dict[str, Any],
    expected: dict[str, tuple[int, ...]],
    prompt_ids: dict[str, tuple[int, ...]],
    reference: Reference,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    rows = []
    plain: dict[str, tuple[int, ...]] | None = None
    for gamma in (0, *combination.gammas):
        speculation = {"enabled": True, "max_tokens": gamma} if gamma else {"enabled": False}
        began = time.monotonic()
        got = answers(app.grpc_address, prompts, options.max_tokens, speculation)
        differences = list(compare(got, expected, "transformers", prompt_ids, reference))
        if plain is None:
            plain = {name: answer.token_ids for name, answer in got.items()}
        else:
            differences += compare(got, plain, "speculation off", prompt_ids, reference)
        row = {
            **asdict(combination),
            "gamma": gamma,
            "num_prompts": len(got),
            "num_tokens": sum(len(a.token_ids) for a in got.values()),
            "num_draft_tokens": sum(a.speculation.num_draft_tokens for a in got.values()),
            "num_accepted_tokens": sum(a.speculation.num_accepted_tokens for a in got.values()),
            "seconds": round(time.monotonic() - began, 1),
            "ties": [asdict(d) for d in differences if d.is_tie],
            "errors": [asdict(d) for d in differences if not d.is_tie],
        }
        row.pop("gammas")
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def environment() -> dict[str, str]:
    return {
        "specdist": specdist.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "command": " ".join(sys.argv),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="spec_bench_dev.jsonl")
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = run(options)
    bad = sum(len(row["errors"]) for row in rows)
    idle = [r for r in rows if r["gamma"] and not r["num_draft_tokens"]]
    print(f"{len(rows)} runs, {bad} differences, {len(idle)} without any candidate")
    return 1 if bad or idle else 0


if __name__ == "__main__":
    sys.exit(main())
