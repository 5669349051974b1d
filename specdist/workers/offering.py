"""How far a session's tree is worth growing, when it is offered, and what the offer holds.

Pure functions on draft sessions; called by the draft worker.
"""

from __future__ import annotations

from specdist.drafters.base import DraftSession
from specdist.drafters.draft_model import DraftModel
from specdist.protocol.candidates import CandidateTree
from specdist.protocol.verdict import Verdict

SMOOTHING = 0.2
GOOD_ENOUGH = 0.7  # survivors worth this share of a usual offer are sent without growing first
UNUSED_BEFORE_PAUSE = 4  # offers in a row that the target did not verify
OFFER_EVERY_WHEN_PAUSED = 8  # verdicts; so that the target can probe whether drafting pays again


def growth(session: DraftSession) -> tuple[int, int]:
    """Nodes and depth up to which the session's tree is worth growing now; (0, 0): not at all."""
    limits = session.limits
    if is_paused(session):
        return 0, 0
    if session.offered_score is None:
        return limits.max_nodes, limits.max_depth
    if session.draws or not limits.max_nodes_ahead:
        # A verdict discards these trees: growing ahead would be for nothing.
        return 0, 0
    return limits.max_nodes + limits.max_nodes_ahead, 2 * limits.max_depth


def note_use(session: DraftSession, verdict: Verdict) -> None:
    """Count offers that the target had and left alone: it does not speculate now.

    An offer without nodes (prompt lookup found nothing) is none that could have been used.
    Drawn trees are verified whenever they are in time, and a late one is lost as a whole: a
    pause, in which the target does not wait, would make the next one late too, for ever.
    """
    if session.draws:
        return
    was_empty = session.offered_score == 0.0
    if verdict.num_draft_tokens:
        session.num_unused = 0
    elif not was_empty and (session.offered_score is not None or session.num_unused):
        session.num_unused += 1


def is_paused(session: DraftSession) -> bool:
    """Whether drafting for the session rests because the target makes no use of it."""
    over = session.num_unused - UNUSED_BEFORE_PAUSE
    return over >= 0 and over % OFFER_EVERY_WHEN_PAUSED != 0


def is_ready(session: DraftSession, model: DraftModel | None) -> bool:
    """Whether the tree goes to the target now: complete, or what survived is good enough."""
    limits = session.limits
    if not limits.max_nodes or is_paused(session):
        return False
    if model is None or model.is_complete(session, limits.max_nodes, limits.max_depth):
        return True
    if session.draws or not limits.max_nodes_ahead:
        return False
    best = session.tree.best(limits.max_nodes, limits.max_depth)
    survivors = session.tree.expected_accepted(best)
    return bool(best) and survivors >= GOOD_ENOUGH * session.usual_score > 0.0


def rest_notice(session: DraftSession) -> CandidateTree | None:
    """What tells the target, once for each pause, that it need not wait; None: nothing to tell."""
    if not is_paused(session) or session.rest_is_known:
        return None
    session.rest_is_known = True
    return CandidateTree(session.request.session_id, session.committed_len, (), (), rests=True)


def make_offer(session: DraftSession) -> CandidateTree:
    """The best part of the tree as a message; remembers that and what was offered."""
    tree, limits = session.tree, session.limits
    nodes = tree.best(limits.max_nodes, limits.max_depth)
    if session.draws:
        nodes = list(range(len(tree)))  # everything that was drawn, or the law is bent
    place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
    session.rest_is_known = False
    session.offered_score = tree.expected_accepted(nodes)
    session.usual_score += SMOOTHING * (session.offered_score - session.usual_score)
    rows = [session.draft_rows[n] for n in (-1, *nodes) if n in session.draft_rows]
    return CandidateTree(
        session_id=session.request.session_id,
        base_len=session.committed_len,
        tokens=tuple(tree.tokens[i] for i in nodes),
        parents=tuple(place[tree.parents[i]] for i in nodes),
        scores=tuple(tree.scores[i] for i in nodes),
        draft_rows=tuple(rows),
    )
