"""The state machine of one request: what is decided, who works on it, how it ends.

Pure: no clock, no asyncio, no clients. ``specdist.router.pipeline`` feeds it events and
acts on what it returns. Invariants: committed tokens only grow; each is handed out once;
nothing changes after the end. Definitions:

    OPENING --opened--> RUNNING --verdict with finish_reason--> FINISHED
       any  --fail(error)--> FAILED            RUNNING --target_lost--> OPENING
"""

from __future__ import annotations

import dataclasses
import enum

from specdist.config import LOSSLESS_RULES
from specdist.errors import InternalError, InvalidRequestError, SpecdistError, UnavailableError
from specdist.protocol.answer import SpeculationSummary, TokenDelta
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import Verdict


class Phase(enum.Enum):
    """Where a request stands."""

    OPENING = "opening"  # no target has taken it (yet, or again)
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Session:
    """One request between its admission and its end."""

    def __init__(self, request: SessionRequest) -> None:
        self._request = request
        self._committed = list(request.committed)
        self._phase = Phase.OPENING
        self._target_id: str | None = None
        self._draft_id: str | None = None
        self._error: SpecdistError | None = None
        self._histogram: list[int] = []
        self._counts = SpeculationSummary()
        self.num_late_verdicts = 0
        self.num_targets_lost = 0

    @property
    def session_id(self) -> str:
        return self._request.session_id

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_over(self) -> bool:
        return self._phase in (Phase.FINISHED, Phase.FAILED)

    @property
    def committed(self) -> tuple[int, ...]:
        return tuple(self._committed)

    @property
    def committed_len(self) -> int:
        return len(self._committed)

    @property
    def target_id(self) -> str | None:
        return self._target_id

    @property
    def draft_id(self) -> str | None:
        return self._draft_id

    @property
    def num_prompt_tokens(self) -> int:
        return self._request.num_prompt_tokens

    @property
    def counts(self) -> SpeculationSummary:
        """What speculation has done for this request so far."""
        return self._counts

    @property
    def error(self) -> SpecdistError | None:
        return self._error

    def request_to_open(self) -> SessionRequest:
        """What a target or draft needs to take the session up where it stands now."""
        return dataclasses.replace(
            self._request, committed=self.committed, target_id=self._target_id or ""
        )

    def opened(self, target_id: str) -> None:
        """A target replica has taken the session."""
        if self._phase is Phase.OPENING:
            self._phase = Phase.RUNNING
            self._target_id = target_id

    def target_lost(self, target_id: str) -> bool:
        """The target is gone; True if the session must be opened elsewhere."""
        if self._phase is not Phase.RUNNING or target_id != self._target_id:
            return False
        self.num_targets_lost += 1
        self._phase = Phase.OPENING
        self._target_id = None
        self._draft_id = None  # its trees go to the target that was lost
        return True

    def draft_attached(self, draft_id: str, base_len: int) -> Verdict | None:
        """A draft took the session at ``base_len``; returns what it has missed since."""
        if self._phase is not Phase.RUNNING:
            return None
        self._draft_id = draft_id
        missed = tuple(self._committed[base_len:])
        if not missed:
            return None
        return Verdict(self.session_id, base_len, missed, num_accepted=0, num_draft_tokens=0)

    def draft_lost(self, draft_id: str) -> bool:
        """The draft is gone; True if it was the one in use."""
        if self._draft_id != draft_id:
            return False
        self._draft_id = None
        return True

    def fail(self, error: SpecdistError) -> bool:
        """Cancelled, past its deadline, or broken; True if this ended the session."""
        if self.is_over:
            return False
        self._phase = Phase.FAILED
        self._error = error
        return True

    def verdict(self, target_id: str, verdict: Verdict) -> TokenDelta | None:
        """Take a verdict; returns the tokens to stream, or None if it is late or repeated.

        A verdict that leaves a gap, or that reports an error, fails the session.
        """
        if self._phase is not Phase.RUNNING or target_id != self._target_id:
            self.num_late_verdicts += 1
            return None
        if verdict.error is not None:
            self.fail(self._error_of(verdict))
            return None
        if verdict.base_len < self.committed_len:
            self.num_late_verdicts += 1
            return None
        if verdict.base_len > self.committed_len:
            self.fail(
                InternalError(
                    f"request {self.session_id}: a verdict starts at {verdict.base_len} "
                    f"where {self.committed_len} tokens are committed"
                )
            )
            return None
        return self._commit(verdict)

    def _error_of(self, verdict: Verdict) -> SpecdistError:
        message = f"request {self.session_id}: {verdict.error}"
        if verdict.is_refusal:
            return InvalidRequestError(message)
        return UnavailableError(message) if verdict.is_retryable else InternalError(message)

    def _commit(self, verdict: Verdict) -> TokenDelta:
        self._committed.extend(verdict.tokens)
        self._count(verdict)
        if verdict.finish_reason is not None:
            self._phase = Phase.FINISHED
        return TokenDelta(
            token_ids=verdict.tokens,
            num_accepted=verdict.num_accepted,
            num_draft_tokens=verdict.num_draft_tokens,
            logprobs=verdict.logprobs,
            finish_reason=verdict.finish_reason,
            seed=self._request.sampling.seed or 0,
            num_cached_tokens=verdict.num_cached_tokens,
            rule=self._request.rule,
            lossless=self._request.rule in LOSSLESS_RULES,
            summary=self._counts,
        )

    def _count(self, verdict: Verdict) -> None:
        before = self._counts
        verified = verdict.num_draft_tokens > 0
        if verified:
            missing = verdict.num_accepted + 1 - len(self._histogram)
            self._histogram.extend([0] * max(0, missing))
            self._histogram[verdict.num_accepted] += 1
        self._counts = SpeculationSummary(
            num_spec_steps=before.num_spec_steps + verified,
            num_steps=before.num_steps + 1,
            num_draft_tokens=before.num_draft_tokens + verdict.num_draft_tokens,
            num_accepted_tokens=before.num_accepted_tokens + verdict.num_accepted,
            num_generated_tokens=self.committed_len - self._request.num_prompt_tokens,
            acceptance_histogram=tuple(self._histogram),
            num_stale_trees=before.num_stale_trees + verdict.num_stale_trees,
        )
