"""What one engine step costs by its number of rows, measured once when a replica starts.

Takes a few seconds: rows of every size up to what a step may hold, on a short context.
Called by the target worker before it serves; later steps keep the model up to date.
"""

from __future__ import annotations

import logging
import time

from specdist.engine.engine import Engine
from specdist.engine.sequence import Rows, chain_rows
from specdist.speculation.cost_model import CostModel

logger = logging.getLogger(__name__)

SESSION = "specdist-profile"
CONTEXT = 64
MOST_ROWS = 64
REPEATS = 2


def profile_engine(engine: Engine) -> CostModel:
    """Measure steps of 1 to 64 rows; leaves nothing in the engine."""
    cost = CostModel()
    context = min(CONTEXT, engine.max_model_len - 2, (engine.num_blocks - 1) * engine.block_size)
    sequence = engine.open(SESSION, [1 % engine.vocab_size] * max(context, 1))
    try:
        if not engine.reserve(sequence, len(sequence.tokens)):
            return _one_row_only(cost)
        engine.forward([chain_rows(sequence, sequence.tokens)])
        engine.settle(sequence, range(len(sequence.tokens)))
        most = min(MOST_ROWS, engine.config.max_step_tokens)
        for num_rows in (n for n in cost.edges if n <= most):
            rows = Rows(sequence, [0] * num_rows, [-1] * num_rows, range(num_rows))
            seconds = [_seconds(engine, rows) for _ in range(REPEATS)]
            if None in seconds:
                break
            cost.observe(num_rows, min(filter(None, seconds)))
    finally:
        engine.close(SESSION)
    seconds = cost.to_dict()["seconds"]
    logger.info("step cost in ms by rows: %s", {n: round(s * 1e3, 1) for n, s in seconds.items()})
    return cost


def _one_row_only(cost: CostModel) -> CostModel:
    """A pool too small to measure in: candidates are taken to cost in proportion."""
    cost.observe(1, 1.0)
    return cost


def _seconds(engine: Engine, rows: Rows) -> float | None:
    """Time of one step, None when the pool cannot hold it."""
    if not engine.reserve(rows.seq, len(rows.tokens)):
        return None
    began = time.perf_counter()
    engine.forward([rows])
    seconds = time.perf_counter() - began
    engine.settle(rows.seq, ())
    return seconds
