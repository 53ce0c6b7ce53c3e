"""Turns errors into HTTP answers: one JSON shape and a status, never a stack trace or the message of an inner error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from headwater.api.errors import RETRY_SECONDS, ApiError, TooManyRequestsError
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.sync.request import InvalidRequestError

_FOR_NOW = frozenset({429, 503})

UNEXPECTED_CODE: Final = "PSYNC_S2001"
"""The code of errors that have none of their own."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a client is told of an error. `status` is the HTTP status."""

    code: str
    status: int
    description: str
    details: str = ""


def told(error: Exception) -> Told:
    """What a client may know of `error`. Messages of inner errors stay in the log, since they may name hosts and
    files."""
    match error:
        case ApiError():
            return Told(error.code, error.status, error.what, error.fix)
        case InvalidRequestError():
            return Told(error.code, 400, error.what, ": ".join(filter(None, (error.where, error.fix))))
        case HTTPException():
            return Told(UNEXPECTED_CODE, error.status_code, error.detail)
        case HeadwaterError(kind=Kind.RETRY):
            return Told(error.code, 503, "the service can't reach a database it needs", "try again")
        case HeadwaterError():
            return Told(error.code, 500, "the service is not able to answer", "its log says why")
        case _:
            return Told(UNEXPECTED_CODE, 500, "Something went wrong", "the service's log says what")


def error_response(error: Exception, beside: Mapping[str, object] = MappingProxyType({})) -> Response:
    """The answer to a request that failed with `error`. `beside` is told beside it."""
    known = told(error)
    headers = _headers(error, known.status)
    if isinstance(error, TooManyRequestsError):
        return Response(status_code=known.status, headers=headers)
    body: dict[str, object] = {
        "name": type(error).__name__,
        "code": known.code,
        "status": known.status,
        "description": known.description,
    }
    if known.details:
        body["details"] = known.details
    return JSONResponse({"error": body, **beside}, status_code=known.status, headers=headers)


def _headers(error: Exception, status: int) -> dict[str, str]:
    """Headers of an error: Retry-After for each status in _FOR_NOW."""
    if isinstance(error, HTTPException):
        return dict(error.headers or {})
    if status not in _FOR_NOW:
        return {}
    return {"retry-after": str(error.retry_after if isinstance(error, ApiError) else RETRY_SECONDS)}
