"""Admission: the limit and the retry hint."""

from __future__ import annotations

import pytest

from specdist.errors import OverloadedError
from specdist.router.admission import MAX_RETRY_S, MIN_RETRY_S, Admission


def test_refuses_when_full_and_takes_again() -> None:
    admission = Admission(1)
    admission.enter()
    with pytest.raises(OverloadedError, match="max_waiting_requests is 1") as caught:
        admission.enter()
    assert caught.value.retry_after_s == MIN_RETRY_S
    admission.leave(4.0)
    admission.enter()
    assert admission.num_in_flight == 1


@pytest.mark.parametrize(("took_s", "hint_s"), [(0.1, MIN_RETRY_S), (8.0, 8.0), (900, MAX_RETRY_S)])
def test_hint_follows_how_long_requests_take(took_s: float, hint_s: float) -> None:
    admission = Admission(1)
    admission.enter()
    admission.leave(took_s)
    assert admission.retry_after_s() == hint_s
