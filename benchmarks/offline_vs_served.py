"""Is the mean acceptance length that eval-draft gives the one that the service has?

    python benchmarks/offline_vs_served.py --prompts PATH/spec_bench_dev.jsonl --num-prompts 40

Answers the same prompts twice with the same seeds: by the evaluation's own loop in this
process, then by the whole application through gRPC, with a fixed tree, no draft-ahead, and a
target that waits for its candidates. Prints both mean acceptance lengths (pooled over prompts:
1 + accepted tokens / verified drafts), their ratio, and how many answers differ. Exit status 1
when the two lengths differ by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdist.api.tokenizer import Tokenizer
from specdist.bench.served import ServedApp
from specdist.client import Client
from specdist.distill.eval_models import check_models
from specdist.distill.eval_prompts import EvalPrompt, Fitted, fit, read_prompt_file
from specdist.distill.eval_runs import TargetRuns
from specdist.distill.eval_settings import DraftSpec, EvalSettings, TreeShape
from specdist.models.progress import log_phases

ALLOWED = 0.05
MAX_WAIT_S = 20.0  # the target waits for candidates that surely come


@dataclass(frozen=True)
class Side:
    """One of the two ways."""

    name: str
    num_prompts: int
    num_generated_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)


def offline(
    spec: DraftSpec, settings: EvalSettings, options: argparse.Namespace
) -> tuple[Side, list[EvalPrompt], list[tuple[int, ...]]]:
    """The evaluation's loop; also the prompts and the plain answers."""
    target, models = check_models([spec], settings, log_phases)
    tokenizer = Tokenizer.load(target.folder)
    file = read_prompt_file(options.prompts, options.num_prompts)
    context = target.pair.target_max_len
    fitted: Fitted = fit(file.conversations, tokenizer, False, settings.max_tokens, context)
    runs = TargetRuns(settings, target, fitted, log_phases)
    runs.prepare(tokenizer, all_turns=False)
    engine = None if spec.model is None else runs.load(models[spec.model], is_draft=True)
    (temperature,), (shape,) = settings.temperatures, settings.shapes
    figures = runs.run(spec, engine, None, temperature, shape).overall
    names = list(Side.__dataclass_fields__)[1:]
    side = Side("offline", **{name: getattr(figures, name) for name in names})
    return side, runs.prompts, [answered.answer for answered in runs.plain[temperature]]


def served(
    spec: DraftSpec, settings: EvalSettings, prompts: Sequence[EvalPrompt]
) -> tuple[Side, list[tuple[int, ...]]]:
    """The application, asked through gRPC."""
    (temperature,) = settings.temperatures
    sampling = {
        "max_tokens": settings.max_tokens,
        "temperature": temperature,
        "top_p": settings.top_p,
        "speculation": {"enabled": True, "rule": settings.rule},
    }
    with (
        ServedApp(app_settings(spec, settings)) as app,
        Client(app.grpc_address, timeout_s=3600) as client,
        ThreadPoolExecutor(settings.concurrency) as pool,
    ):

        def ask(numbered: tuple[int, EvalPrompt]) -> Any:
            i, prompt = numbered
            return client.generate(list(prompt.token_ids), seed=settings.seed + i, **sampling)

        answers = list(pool.map(ask, enumerate(prompts)))
    stats = [answer.speculation for answer in answers]
    side = Side(
        "served",
        num_prompts=len(answers),
        num_generated_tokens=sum(len(answer.token_ids) for answer in answers),
        num_drafts=sum(s.num_spec_steps for s in stats),
        num_draft_tokens=sum(s.num_draft_tokens for s in stats),
        num_accepted_tokens=sum(s.num_accepted_tokens for s in stats),
    )
    return side, [tuple(answer.token_ids) for answer in answers]


def app_settings(spec: DraftSpec, settings: EvalSettings) -> dict[str, Any]:
    """The same pair, tree and number types; laid over serve_config.yaml."""
    (shape,) = settings.shapes
    speculation = asdict(shape.speculation(spec.drafters))
    speculation["drafters"] = list(spec.drafters)
    draft = {"dtype": settings.dtype}
    if spec.model is not None:
        draft["model"] = spec.model
    return {
        "target": {"model": settings.target, "dtype": settings.dtype},
        "draft": draft,
        "speculation": {**speculation, "max_wait_s": MAX_WAIT_S},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="spec_bench_dev.jsonl")
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft", default="demo-draft", help="a model, ngram or MODEL+ngram")
    parser.add_argument("--tree", default="chain:4", help="chain:LENGTH or tree:NODES[:DEPTH]")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    settings = EvalSettings(
        target=options.target,
        max_tokens=options.max_tokens,
        temperatures=(options.temperature,),
        shapes=(TreeShape.parse(options.tree),),
        concurrency=options.concurrency,
        dtype=options.dtype,
    )
    spec = DraftSpec.parse(options.draft)
    here, prompts, plain = offline(spec, settings, options)
    there, answers = served(spec, settings, prompts)
    ratio = there.mean_acceptance_length / here.mean_acceptance_length
    result = {
        "command": " ".join(sys.argv),
        "offline": {**asdict(here), "mean_acceptance_length": here.mean_acceptance_length},
        "served": {**asdict(there), "mean_acceptance_length": there.mean_acceptance_length},
        "served_over_offline": ratio,
        "num_answers_unlike_plain": sum(a != p for a, p in zip(answers, plain, strict=True)),
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if abs(ratio - 1) <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
