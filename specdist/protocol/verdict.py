"""What a target decided in one engine step: one bundle for each router.

Made by ``specdist.workers.target_worker``; the router reads it for its clients and
passes the same object on to the drafts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's log probability of one emitted token, and of the likeliest ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verification decided for one session."""

    session_id: str
    base_len: int  # committed tokens before this step
    tokens: tuple[int, ...]  # committed by this step: the accepted ones, then the next token
    num_accepted: int  # how many of ``tokens`` the draft had proposed
    num_draft_tokens: int  # candidates verified, root excluded
    num_stale_trees: int = 0  # trees dropped since the last verdict
    finish_reason: str | None = None  # "stop", "length", "error"
    error: str | None = None
    is_retryable: bool = False  # of an error: the same request may succeed if sent again
    is_refusal: bool = False  # of an error: the request asks for what cannot be done
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache held (first verdict)


@dataclass(frozen=True, slots=True)
class StepReport:
    """All verdicts of one engine step that belong to one router: one message."""

    target_id: str
    verdicts: tuple[Verdict, ...]
    step_s: float = 0.0
