"""What steps cost, and the speed-up that follows from counts: one request at a time.

The curves of both engines are measured as the service measures them when it starts. A step
that verifies n candidates costs the target C(n + 1), plain decoding C(1). The drafter's time
is its model's forward passes by its own curve, and what ranking and looking up took.

    speed-up = tokens per step * C(1) / (time of a step)
    shared:   the draft takes the target's cores: its time is added to the target's
    hidden:   the draft has a device of its own and grows ahead: a step takes the longer of
              the two. An upper bound: it takes what is grown ahead to be always right

Pure, but for ``measure_cost``. Called by ``eval_acceptance``, ``eval_runs`` and ``eval_draft``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from specdist.engine.engine import Engine
from specdist.speculation.cost_model import CostModel
from specdist.workers.profiling import profile_engine

# The quickest of several profiles counts: other work on the machine only ever adds.
MIN_PROFILES, MAX_PROFILES = 3, 20
PROFILE_S = 4.0  # after so long no further one is begun


@dataclass(frozen=True)
class Work:
    """What decoding steps consisted of, summed over sessions; prefill is not among them."""

    num_steps: int
    num_tokens: int
    candidates: Mapping[int, int]  # candidates verified -> number of steps
    draft_passes: Mapping[int, int]  # rows of one session in a draft forward pass -> how many
    drafter_s: float  # seconds per step outside the draft's model: ranking, looking up


@dataclass(frozen=True)
class Prediction:
    """Expected times of one step, and what they come to."""

    tokens_per_step: float
    target_step_ms: float
    draft_ms_per_step: float
    speed_up_shared: float
    speed_up_hidden: float


def measure_cost(engine: Engine) -> CostModel:
    """The engine's curve, each stair at its quickest."""
    curves: list[dict[int, float]] = []
    began = time.monotonic()
    while len(curves) < MIN_PROFILES or (
        len(curves) < MAX_PROFILES and time.monotonic() - began < PROFILE_S
    ):
        curves.append(profile_engine(engine).to_dict()["seconds"])
    best = CostModel()
    for num_rows in curves[0]:
        best.observe(num_rows, min(curve[num_rows] for curve in curves if num_rows in curve))
    return best


def curve_ms(cost: CostModel) -> dict[int, float]:
    """Measured milliseconds by rows."""
    return {n: 1e3 * s for n, s in cost.to_dict()["seconds"].items()}


def predict(work: Work, target: CostModel, draft: CostModel | None) -> Prediction:
    """The speed-up of one request that is alone on both devices."""
    steps = max(work.num_steps, 1)
    target_s = sum(target.step_s(n + 1) * count for n, count in work.candidates.items()) / steps
    draft_s = work.drafter_s
    if draft is not None:
        draft_s += sum(draft.step_s(n) * count for n, count in work.draft_passes.items()) / steps
    tokens = work.num_tokens / steps
    plain_s = target.step_s(1)
    return Prediction(
        tokens_per_step=tokens,
        target_step_ms=1e3 * target_s,
        draft_ms_per_step=1e3 * draft_s,
        speed_up_shared=tokens * plain_s / (target_s + draft_s) if work.num_steps else 1.0,
        speed_up_hidden=tokens * plain_s / max(target_s, draft_s) if work.num_steps else 1.0,
    )


def total_work(parts: list[Work]) -> Work:
    """The work of several groups of prompts together."""
    candidates: Counter[int] = Counter()
    passes: Counter[int] = Counter()
    for part in parts:
        candidates.update(part.candidates)
        passes.update(part.draft_passes)
    num_steps = sum(p.num_steps for p in parts)
    drafter_s = sum(p.drafter_s * p.num_steps for p in parts) / max(num_steps, 1)
    num_tokens = sum(p.num_tokens for p in parts)
    return Work(num_steps, num_tokens, candidates, passes, drafter_s)
