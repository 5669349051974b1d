"""From the target's logits to a verdict: law, rule, stop conditions, log probabilities.

Called by the target worker for one session at a time; touches neither the engine's cache
nor any queue.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from specdist.engine.engine import Engine
from specdist.protocol.verdict import TokenLogprobs, Verdict
from specdist.speculation.sampling import raw_logprobs
from specdist.workers.target_session import FittedTree, TargetSession


class Decision(NamedTuple):
    """What one verification came to."""

    verdict: Verdict
    accepted: tuple[int, ...]  # nodes whose KV is to be kept
    num_missing_rows: int  # inner nodes without a usable draft law, taken as rejected


def decide(session: TargetSession, trees: FittedTree, logits: Tensor, engine: Engine) -> Decision:
    """Verify one tree.

    ``logits`` has one row for the root and one for each node.  # [1 + nodes, vocab]
    """
    tree = trees.tree
    result = session.verify(trees, logits)
    tokens = [*(tree.tokens[i] for i in result.path), result.next_token]
    tokens, finish_reason = _cut(session, tokens, engine)
    accepted = result.path[: len(tokens)]
    logprobs = _logprobs(session, logits, result.path, tokens)
    verdict = session.verdict(
        tuple(tokens),
        num_accepted=len(accepted),
        num_draft_tokens=len(tree),
        finish_reason=finish_reason,
        logprobs=logprobs,
    )
    session.sampling.commit(tokens)
    session.learn(len(tree), len(accepted), len(tokens))
    return Decision(verdict, accepted, result.num_missing_rows)


def _cut(session: TargetSession, tokens: list[int], engine: Engine) -> tuple[list[int], str | None]:
    """Nothing after an end token, nothing beyond max_tokens or the context."""
    room = min(
        session.max_tokens - session.num_generated,
        engine.max_model_len - session.committed_len,
    )
    for i, token in enumerate(tokens[:room]):
        if token in session.stop_ids:
            return tokens[: i + 1], "stop"
    return tokens[:room], "length" if len(tokens) >= room else None


def _logprobs(
    session: TargetSession, logits: Tensor, path: tuple[int, ...], tokens: list[int]
) -> tuple[TokenLogprobs, ...]:
    """The target's own log probabilities of the emitted tokens and of the likeliest ones.

    Under a grammar: among the tokens that it allows, which may be fewer than were asked for.
    """
    wanted = session.request.num_logprobs
    if wanted is None:
        return ()
    rows = [0, *(i + 1 for i in path)][: len(tokens)]
    before = [tuple(tokens[:i]) for i in range(len(tokens))]
    table = raw_logprobs(logits[rows], session.sampling.constraint, before)
    top = table.topk(wanted, dim=-1) if wanted else None
    entries = []
    for i, token in enumerate(tokens):
        likeliest: tuple[tuple[int, float], ...] = ()
        if top is not None:
            pairs = zip(top.indices[i].tolist(), top.values[i].tolist(), strict=True)
            likeliest = tuple((t, p) for t, p in pairs if math.isfinite(p))
        entries.append(TokenLogprobs(token, float(table[i, token]), likeliest))
    return tuple(entries)
