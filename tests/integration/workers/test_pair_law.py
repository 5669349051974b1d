"""The law of what comes out is the target's own: chi-square through engine, drafts and rules."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy import stats

from specdist.config import SpeculationConfig
from specdist.protocol.request import SamplingParams
from specdist.speculation.sampling import SamplingState, log_probs
from tests.pair import Pair, request
from tests.tiny_models import build_tiny

VOCAB = 7
PROMPT = [3, 5, 4, 6, 3]
NUM_TOKENS = 3
NUM_SESSIONS = 1500


@pytest.fixture(scope="module")
def models() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.set_num_threads(1)
    target = build_tiny("qwen3", vocab_size=VOCAB, layers=1, seed=1)
    draft = build_tiny("qwen3", vocab_size=VOCAB, layers=1, seed=2)
    with torch.no_grad():  # every answer possible, the two laws far apart
        target.get_output_embeddings().weight *= 0.5
        draft.get_output_embeddings().weight *= 0.5
    return target, draft


def exact_law(model: torch.nn.Module, options: dict[str, float]) -> dict[tuple[int, ...], float]:
    """The probability of every answer of NUM_TOKENS tokens, by transformers' own forward."""
    state = SamplingState(SamplingParams(**options))
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for answer, mass in law.items():
            with torch.no_grad():
                logits = model(torch.tensor([[*PROMPT, *answer]]), use_cache=False).logits[0, -1:]
            row = log_probs(logits, state).exp()[0]
            for token, p in enumerate(row.tolist()):
                if p > 0:
                    longer[(*answer, token)] = mass * p
        law = longer
    return law


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", ["coupled", "rejection", "traversal"])
@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}], ids=["t1", "t0.7p0.9"]
)
def test_answers_follow_the_target_law(
    models: tuple[torch.nn.Module, torch.nn.Module], rule: str, options: dict[str, float]
) -> None:
    target, draft = models
    law = exact_law(build_tiny_copy(target), options)
    settings = SpeculationConfig(
        mode="tree", num_speculative_tokens=2, max_tree_nodes=6, max_children=2,
        drafters=("draft_model",),
    )  # fmt: skip
    pair = Pair(target, draft, speculation=settings, target={"prefix_cache": True})
    counts: Counter[tuple[int, ...]] = Counter()
    batch = 50
    for start in range(0, NUM_SESSIONS, batch):
        for i in range(start, start + batch):
            pair.open(
                request(
                    f"{rule}{i}", PROMPT, rule=rule, max_tokens=NUM_TOKENS, ignore_eos=True,
                    **{**options, "seed": 7919 * i + 13},
                )
            )  # fmt: skip
        pair.run(draft_steps=8)
        counts.update(tuple(a.tokens) for a in pair.answers.values())
        accepted = sum(a.num_accepted for a in pair.answers.values())
        pair.answers.clear()
    assert accepted > 0
    assert set(counts) <= set(law)
    assert chi_square_p(counts, law) > 0.001


def build_tiny_copy(model: torch.nn.Module) -> torch.nn.Module:
    """The same weights with the library's own attention."""
    copy = build_tiny("qwen3", vocab_size=VOCAB, layers=1, seed=1)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def chi_square_p(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p value of the observed answers; rare ones are pooled."""
    total = sum(counts.values())
    observed, expected, rare = [], [], [0.0, 0.0]
    for answer, mass in law.items():
        if mass * total >= 5:
            observed.append(float(counts[answer]))
            expected.append(mass * total)
        else:
            rare[0] += counts[answer]
            rare[1] += mass * total
    if rare[1] > 0:
        observed.append(rare[0])
        expected.append(rare[1])
    scale = total / sum(expected)  # float32 laws do not sum to 1 in the last digit
    return float(stats.chisquare(observed, [e * scale for e in expected]).pvalue)
