"""Plain against speculative decoding through gRPC: one stream, in pairs on the same server.

    python benchmarks/plain_vs_speculative.py --prompts PATH/spec_bench_dev.jsonl

For each setting the application is started once; every prompt is answered plain and with
speculation one after the other (the order alternates), so that both meet the same machine.
Reports medians over prompts of tokens/s and time to first token, the ratio pair by pair,
and the mean acceptance length. Greedy; the draft and the target share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import specdist
from specdist.bench.served import ServedApp
from specdist.client import Client

SETTINGS: dict[str, dict[str, Any]] = {
    "adaptive (default)": {"mode": "adaptive"},
    "tree of 16, draft-ahead": {"mode": "tree", "draft_ahead": True},
    "tree of 16, synchronous": {"mode": "tree", "draft_ahead": False},
}


@dataclass(frozen=True)
class Timing:
    """One answer as the client saw it."""

    category: str
    num_tokens: int
    first_token_s: float
    total_s: float
    mean_acceptance_length: float
    num_draft_tokens: int
    num_accepted_tokens: int
    token_ids: tuple[int, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.total_s


def ask(client: Client, item: dict[str, Any], max_tokens: int, speculate: bool) -> Timing:
    messages = [{"role": "user", "content": item["turns"][0]}]
    began = time.perf_counter()
    first_s, ids, last = 0.0, [], None
    for chunk in client.stream(
        messages, max_tokens=max_tokens, temperature=0.0, speculation={"enabled": speculate}
    ):
        first_s = first_s or time.perf_counter() - began
        ids += chunk.token_ids
        last = chunk
    total_s = time.perf_counter() - began
    assert last is not None and last.speculation is not None
    stats = last.speculation
    return Timing(
        item["category"],
        len(ids),
        first_s,
        total_s,
        stats.mean_acceptance_length,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        tuple(ids),
    )


def measure(
    name: str, speculation: dict[str, Any], items: list[Any], options: argparse.Namespace
) -> dict[str, Any]:
    plain: list[Timing] = []
    fast: list[Timing] = []
    with (
        ServedApp({"speculation": speculation}) as app,
        Client(app.grpc_address, timeout_s=600) as client,
    ):
        for speculate in (False, True):  # warm-up, on a prompt that is not measured
            ask(client, {"category": "", "turns": ["Say hello."]}, 16, speculate)
        for i, item in enumerate(items):
            # A fresh first line keeps the prefix cache from favouring the second of a pair.
            order = (False, True) if i % 2 else (True, False)
            for speculate in order:
                tagged = {**item, "turns": [f"({i}{'ab'[speculate]}) {item['turns'][0]}"]}
                (fast if speculate else plain).append(
                    ask(client, tagged, options.max_tokens, speculate)
                )
    return {
        "setting": name,
        "speculation": speculation,
        "plain": summary(plain),
        "speculative": summary(fast),
        "speed_up": round(
            statistics.median(
                f.tokens_per_s / p.tokens_per_s for f, p in zip(fast, plain, strict=True)
            ),
            3,
        ),
        "answers": [
            {k: v for k, v in asdict(t).items() if k != "token_ids"} for t in (*plain, *fast)
        ],
    }


def summary(timings: list[Timing]) -> dict[str, float]:
    drafts = sum(t.num_draft_tokens for t in timings)
    accepted = sum(t.num_accepted_tokens for t in timings)
    return {
        "tokens_per_s": round(statistics.median(t.tokens_per_s for t in timings), 2),
        "first_token_ms": round(1e3 * statistics.median(t.first_token_s for t in timings), 1),
        "mean_acceptance_length": round(
            statistics.mean(t.mean_acceptance_length for t in timings), 3
        ),
        "draft_acceptance_rate": round(accepted / drafts, 3) if drafts else 0.0,
        "num_draft_tokens": drafts,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| setting | plain tok/s | speculative tok/s | speed-up (median of pairs) "
        "| TTFT plain / spec. ms | mean acceptance length | acceptance rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plain, fast = row["plain"], row["speculative"]
        lines.append(
            f"| {row['setting']} | {plain['tokens_per_s']} | {fast['tokens_per_s']} "
            f"| {row['speed_up']} | {plain['first_token_ms']} / {fast['first_token_ms']} "
            f"| {fast['mean_acceptance_length']} | {fast['draft_acceptance_rate']} |"
        )
    return "\n".join(lines)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """After each setting: a run that is stopped keeps what it has."""
    result = {
        "command": " ".join(sys.argv),
        "specdist": specdist.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
        "rows": rows,
    }
    (options.out / "plain_vs_speculative.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "plain_vs_speculative.md").write_text(table(rows) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="spec_bench_dev.jsonl")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.prompts.read_text().splitlines()]
    step = len(lines) / options.num_prompts
    items = [lines[int(i * step)] for i in range(options.num_prompts)]
    rows: list[dict[str, Any]] = []
    for name, speculation in SETTINGS.items():
        rows.append(measure(name, speculation, items, options))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "answers"}), flush=True)
        write(options, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
