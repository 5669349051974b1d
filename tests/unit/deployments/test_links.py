"""What errors of Ray and Serve mean to clients."""

from __future__ import annotations

import pickle

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)

from deployments.links import DraftLink, as_specdist_error
from specdist.errors import (
    InternalError,
    InvalidRequestError,
    OverloadedError,
    SpecdistError,
    UnavailableError,
)


def task_error(cause: Exception) -> Exception:
    """How an exception of a replica arrives here."""
    error = RayTaskError("open", "traceback", cause)
    return pickle.loads(pickle.dumps(error)).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ActorDiedError(), UnavailableError),
        (task_error(ActorDiedError()), UnavailableError),
        (RequestCancelledError("r"), UnavailableError),
        (RayServeException("no route"), UnavailableError),
        (BackPressureError(num_queued_requests=1, max_queued_requests=1), OverloadedError),
        (task_error(ValueError("boom")), InternalError),
        (OverloadedError("full"), OverloadedError),
    ],
)
def test_kinds(error: Exception, kind: type[SpecdistError]) -> None:
    assert type(as_specdist_error(error, "target")) is kind


def test_our_errors_keep_their_fields_across_processes() -> None:
    sent = task_error(OverloadedError("full", param="p", code="c", retry_after_s=2.5))
    got = as_specdist_error(sent, "target")
    assert type(got) is OverloadedError
    assert (got.message, got.param, got.code, got.retry_after_s) == ("full", "p", "c", 2.5)
    assert type(as_specdist_error(task_error(InvalidRequestError("x")), "t")) is InvalidRequestError


def test_unavailable_deployment() -> None:
    error = DeploymentUnavailableError.__new__(DeploymentUnavailableError)
    assert type(as_specdist_error(error, "draft")) is UnavailableError


class NoReplicas:
    """A deployment handle while every replica is gone."""

    def options(self, **_: object) -> NoReplicas:
        return self

    def broadcast(self, method: str) -> None:
        raise RayServeException("no running replicas")


async def test_metrics_do_without_a_lost_deployment() -> None:
    link = DraftLink(NoReplicas(), "r0")
    await link.flush_metrics()
    with pytest.raises(UnavailableError, match="draft"):
        await link.count_alive()
