"""Errors -> what HTTP and gRPC clients see: the one place where statuses are mapped.

An exception that is none of ours is logged with the request id and shown as an internal
error without its text. Used by the HTTP app, the gRPC servicer and its Ray Serve ingress.
"""

from __future__ import annotations

import asyncio
import logging
import math

import grpc

from specdist.errors import InternalError, SpecdistError

logger = logging.getLogger(__name__)

_HIDDEN = "internal_error"  # the code of an error whose cause stands in the log

Metadata = tuple[tuple[str, str], ...]


def known_error(error: BaseException, request_id: str = "") -> SpecdistError:
    """The error itself if it is one of ours; anything else is logged and hidden."""
    if isinstance(error, InternalError) and error.code != _HIDDEN:  # not logged yet
        logger.error("request %s: %s", request_id, error.message)
    if isinstance(error, SpecdistError):
        return error
    logger.error("request %s failed", request_id, exc_info=error)
    where = f"; the log has it under request id {request_id}" if request_id else ""
    return InternalError(f"internal error{where}", code=_HIDDEN)


def error_object(error: SpecdistError) -> dict[str, dict[str, str | None]]:
    """OpenAI's error object."""
    return {
        "error": {
            "message": error.message,
            "type": error.error_type,
            "param": error.param,
            "code": error.code,
        }
    }


def http_headers(error: SpecdistError) -> dict[str, str]:
    """Retry-After, where the error knows when to try again (whole seconds, at least 1)."""
    if error.retry_after_s is None:
        return {}
    return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}


def grpc_error(error: BaseException, request_id: str = "") -> tuple[grpc.StatusCode, str, Metadata]:
    """Status code, details and trailing metadata for any error that ends a call.

    Metadata: ``error-type``, ``error-param``, ``error-code``, and with a retry hint
    ``retry-after-s`` and gRPC's own ``grpc-retry-pushback-ms``.
    """
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED, "the call was cancelled", ()
    known = known_error(error, request_id)
    metadata = [("error-type", known.error_type)]
    if known.param is not None:
        metadata.append(("error-param", _ascii(known.param)))
    if known.code is not None:
        metadata.append(("error-code", _ascii(known.code)))
    if known.retry_after_s is not None:
        metadata.append(("retry-after-s", f"{known.retry_after_s:g}"))
        metadata.append(("grpc-retry-pushback-ms", str(int(known.retry_after_s * 1000))))
    return grpc.StatusCode[known.grpc_status], known.message, tuple(metadata)


def _ascii(text: str) -> str:
    """Metadata values hold printable ASCII only."""
    escaped = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else "?" for c in escaped)[:256]
