"""The state machine of one request: a stateful property test, and single facts."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    SpecdistError,
    UnavailableError,
)
from specdist.protocol.request import SamplingParams, SessionRequest
from specdist.protocol.verdict import Verdict
from specdist.router.session import Phase, Session

PROMPT = (1, 2, 3)
REQUEST = SessionRequest("s", PROMPT, 3, SamplingParams(max_tokens=50, seed=9), "coupled")
TOKENS = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)
IDS = st.sampled_from(["A", "B"])


class SessionMachine(RuleBasedStateMachine):
    """Any order of events: committed tokens only grow, each is streamed once."""

    @initialize()
    def start(self) -> None:
        self.session = Session(REQUEST)
        self.streamed: list[int] = []
        self.before: tuple[int, ...] = PROMPT
        self.sent: list[tuple[str, Verdict]] = []
        self.end: Phase | None = None
        self.last = None

    @rule(target_id=IDS)
    def opened(self, target_id: str) -> None:
        self.session.opened(target_id)

    @rule(
        tokens=TOKENS,
        share=st.floats(0, 1),
        num_rejected=st.integers(0, 3),
        finish=st.sampled_from([None, None, None, "stop", "length"]),
        who=IDS,
    )
    def verdict(
        self, tokens: tuple[int, ...], share: float, num_rejected: int, finish: str | None, who: str
    ) -> None:
        num_accepted = int(share * len(tokens))
        self._send(
            who,
            Verdict(
                "s",
                self.session.committed_len,
                tokens,
                num_accepted,
                num_accepted + num_rejected,
                finish_reason=finish,
            ),
        )

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeated_verdict(self, data: st.DataObject) -> None:
        who, verdict = data.draw(st.sampled_from(self.sent))
        if verdict.base_len < self.session.committed_len:
            assert self.session.verdict(who, verdict) is None

    @rule(ahead=st.integers(1, 5), who=IDS)
    def gap(self, ahead: int, who: str) -> None:
        hears = self.session.phase is Phase.RUNNING and who == self.session.target_id
        base_len = self.session.committed_len + ahead
        assert self.session.verdict(who, Verdict("s", base_len, (5,), 0, 0)) is None
        assert (self.session.phase is Phase.FAILED) or not hears

    @rule(base=st.integers(0, 60), who=IDS)
    def draft_attached(self, base: int, who: str) -> None:
        base_len = min(len(PROMPT) + base, self.session.committed_len)
        missed = self.session.draft_attached(who, base_len)
        if missed is not None:
            assert missed.base_len == base_len
            assert missed.tokens == self.session.committed[base_len:]

    @rule(who=IDS)
    def draft_lost(self, who: str) -> None:
        self.session.draft_lost(who)
        assert self.session.draft_id != who

    @rule(who=IDS)
    def target_lost(self, who: str) -> None:
        if self.session.target_lost(who):
            request = self.session.request_to_open()
            assert request.committed == self.session.committed
            assert request.num_prompt_tokens == len(PROMPT)
            assert self.session.draft_id is None

    @rule(fails=st.integers(0, 9))
    def fail(self, fails: int) -> None:
        if fails == 0:
            self.session.fail(DeadlineError("late"))

    def _send(self, who: str, verdict: Verdict) -> None:
        self.sent.append((who, verdict))
        delta = self.session.verdict(who, verdict)
        if delta is not None:
            assert self.end is None
            self.streamed.extend(delta.token_ids)
            self.last = delta.summary

    @invariant()
    def committed_only_grows_and_is_what_was_streamed(self) -> None:
        committed = self.session.committed
        assert committed[: len(self.before)] == self.before
        assert committed == (*PROMPT, *self.streamed)
        if self.end is not None:
            assert committed == self.before
            assert self.session.phase is self.end
        self.before = committed
        if self.session.is_over:
            self.end = self.session.phase

    @invariant()
    def counts_agree(self) -> None:
        if self.last is None:
            return
        assert self.last.num_generated_tokens == len(self.streamed)
        assert self.last.num_accepted_tokens <= self.last.num_draft_tokens
        assert self.last.num_accepted_tokens <= self.last.num_generated_tokens
        assert sum(self.last.acceptance_histogram) == self.last.num_spec_steps
        assert (
            sum(i * n for i, n in enumerate(self.last.acceptance_histogram))
            == self.last.num_accepted_tokens
        )


SessionMachine.TestCase.settings = settings(max_examples=60, deadline=None)
TestSession = SessionMachine.TestCase


def running() -> Session:
    session = Session(REQUEST)
    session.opened("A")
    return session


def test_verdict_of_a_former_target_is_late() -> None:
    session = running()
    assert session.target_lost("A")
    session.opened("B")
    assert session.verdict("A", Verdict("s", 3, (4,), 0, 0)) is None
    assert session.num_late_verdicts == 1
    delta = session.verdict("B", Verdict("s", 3, (4,), 0, 0))
    assert delta is not None and delta.token_ids == (4,)


def test_error_verdict_fails_and_names_the_request() -> None:
    session = running()
    assert session.verdict("A", Verdict("s", 3, (), 0, 0, error="NaN")) is None
    assert isinstance(session.error, InternalError)
    assert session.error.message == "request s: NaN"


def test_draft_of_a_lost_target_is_let_go() -> None:
    session = running()
    session.draft_attached("D", 3)
    session.target_lost("A")
    assert session.draft_id is None


@pytest.mark.parametrize(("rule", "lossless"), [("coupled", True), ("typical", False)])
def test_delta_tells_whether_the_rule_is_lossless(rule: str, lossless: bool) -> None:
    session = Session(SessionRequest("s", PROMPT, 3, SamplingParams(seed=1), rule))
    session.opened("A")
    delta = session.verdict("A", Verdict("s", 3, (4, 5), 1, 2, finish_reason="stop"))
    assert delta is not None
    assert (delta.lossless, delta.rule, delta.finish_reason) == (lossless, rule, "stop")
    assert delta.summary.acceptance_histogram == (0, 1)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ({}, InternalError),
        ({"is_retryable": True}, UnavailableError),
        ({"is_refusal": True}, InvalidRequestError),
    ],
)
def test_what_kind_of_error_a_verdict_reports(
    flags: dict[str, bool], kind: type[SpecdistError]
) -> None:
    session = running()
    verdict = Verdict("s", 3, (), 0, 0, finish_reason="error", error="no", **flags)
    assert session.verdict("A", verdict) is None
    assert type(session.error) is kind
    assert session.phase is Phase.FAILED
