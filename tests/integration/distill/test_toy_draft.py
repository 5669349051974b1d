"""A toy draft, trained for some seconds: the service's own loop accepts more of its tokens."""

from __future__ import annotations

import json
from pathlib import Path

from specdist.config import AppConfig, EngineConfig, SpeculationConfig
from specdist.distill.export import export_draft
from specdist.distill.offline_pair import Answer, OfflinePair
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model
from tests.integration.distill.distill_rig import run
from tests.pair import request

NUM_PROMPTS = 12
CHAIN = 5


def answer(target: Path, draft: Path, prompts: list[list[int]]) -> list[Answer]:
    """Greedy answers to the prompts, drafted in chains of five."""
    engine = EngineConfig(kv_cache_bytes=64 << 20, max_model_len=256, num_threads=1)
    speculation = SpeculationConfig(
        mode="fixed",
        num_speculative_tokens=CHAIN,
        max_tree_nodes=CHAIN,
        max_children=1,
        drafters=("draft_model",),
        max_wait_s=0.0,
    )
    config = AppConfig(target=engine, draft=engine, speculation=speculation)
    engines = [Engine(load_model(f, "cpu", "float32", 1), engine) for f in (target, draft)]
    pair = OfflinePair(config, engines[0], engines[1])
    requests = [request(str(i), prompt, max_tokens=24) for i, prompt in enumerate(prompts)]
    return pair.answer_all(requests, concurrency=8)


def acceptance_length(answers: list[Answer]) -> float:
    """Mean acceptance length: tokens for each verified draft, the next token included."""
    drafted = [v for a in answers for v in a.verdicts if v.num_draft_tokens]
    return 1 + sum(v.num_accepted for v in drafted) / len(drafted)


def test_acceptance_rises(target: Path, tmp_path: Path) -> None:
    options = {
        **{"num_tokens": 4000, "layers": (0, 1, 3), "num_steps": 80, "learning_rate": 5e-3},
        **{"max_new_tokens": (16, 48), "eval_steps": 40, "batch_tokens": 2048, "warmup_steps": 10},
    }
    pipeline = run(target, tmp_path, **options)
    training = pipeline.training
    export_draft(training.new_student(), target, tmp_path / "untrained")
    items = training.dataset.held_out[:NUM_PROMPTS]
    prompts = [i.example.tokens[: i.example.answer_start].tolist() for i in items]
    before = answer(target, tmp_path / "untrained", prompts)
    after = answer(target, tmp_path / "draft", prompts)
    assert [a.tokens for a in before] == [a.tokens for a in after], "no draft changes an answer"
    lengths = [acceptance_length(answers) for answers in (before, after)]
    assert lengths[1] - 1 > 1.5 * (lengths[0] - 1), lengths
    figures = json.loads((tmp_path / "provenance.json").read_text())
    curve = [row["figures"]["all"]["top1"] for row in figures["curve"]]
    assert curve[-1] > 1.5 * curve[0], curve
