"""The few kinds of error a caller can meet, each with its HTTP and gRPC status.

Everything that crosses a process boundary towards a user is one of these. The
module knows no web framework and no RPC library: statuses are plain numbers and
names. Raised everywhere, mapped once in ``specdist.api``.
"""

from __future__ import annotations

from typing import ClassVar


class SpecdistError(Exception):
    """Base of every error that a user may see."""

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    error_type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.param, self.code, self.retry_after_s))


def _rebuild(
    kind: type[SpecdistError],
    message: str,
    param: str | None,
    code: str | None,
    retry_after_s: float | None,
) -> SpecdistError:
    return kind(message, param=param, code=code, retry_after_s=retry_after_s)


class InvalidRequestError(SpecdistError):
    """The request is wrong; the message names the field, the value and what is allowed."""

    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    error_type = "invalid_request_error"


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that this application does not serve."""

    http_status = 404
    grpc_status = "NOT_FOUND"


class OverloadedError(SpecdistError):
    """Queues or memory are full; try again after ``retry_after_s``."""

    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    error_type = "rate_limit_error"


class DeadlineError(SpecdistError):
    """The deadline that the client gave has passed."""

    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"
    error_type = "timeout_error"


class UnavailableError(SpecdistError):
    """No target can answer now (none is running, or the one in use was lost)."""

    http_status = 503
    grpc_status = "UNAVAILABLE"
    error_type = "service_unavailable_error"


class InternalError(SpecdistError):
    """Something broke on our side; the request id leads to the log."""


class ConfigError(SpecdistError):
    """A setting is wrong; start-up is refused."""

    error_type = "config_error"


class ModelError(SpecdistError):
    """A model cannot be loaded, or a draft and a target do not belong together."""

    error_type = "model_error"
