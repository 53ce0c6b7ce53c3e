"""How an error leaves the house: one JSON shape, one status, never a stack trace or an inner message."""

from __future__ import annotations

import logging
from typing import ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headwater.errors import HeadwaterError, Kind
from headwater.sync.request import InvalidRequestError
from headwater_rules.errors import RuleLimitError

log = logging.getLogger(__name__)


class ApiError(HeadwaterError):
    """Base of the errors that know their HTTP status."""

    kind = Kind.REJECT
    status: ClassVar[int] = 400


class UnknownRouteError(ApiError):
    code = "PSYNC_S2002"
    status = 404


class ShuttingDownError(ApiError):
    """The process is about to end; another one, or the next one, will answer."""

    kind = Kind.RETRY
    code = "PSYNC_S2003"
    status = 503


class NoActiveConfigError(ApiError):
    """No sync config is active yet: none was deployed, or its first snapshot is still running."""

    kind = Kind.RETRY
    code = "PSYNC_S2302"
    status = 500

    def __init__(self) -> None:
        super().__init__("no sync config is active", fix="deploy one, or wait for its first snapshot to end")


class BodyTooLargeError(ApiError):
    code = "HW_6002"
    status = 413


class NotAcceptableError(ApiError):
    """The client takes none of the formats that the stream comes in."""

    code = "HW_6003"
    status = 406


class TooManyRequestsError(ApiError):
    """A limit on what is done at once; answered with an empty body, as clients know it."""

    kind = Kind.RETRY
    code = "PSYNC_S2304"
    status = 429


def error_response(error: Exception) -> Response:
    """The answer to a request that failed with `error`."""
    if isinstance(error, TooManyRequestsError):
        return Response(status_code=error.status)
    if isinstance(error, HTTPException):
        return _body("HTTPException", "PSYNC_S2001", error.status_code, error.detail)
    if isinstance(error, RuleLimitError):
        return _body(
            type(error).__name__,
            error.code,
            422,
            f"the request needs more than {error.limit} {error.what}",
            "narrow the streams' queries or raise the limit",
        )
    if isinstance(error, HeadwaterError):
        return _body(type(error).__name__, error.code, status_of(error), error.what, error.fix)
    return _body("InternalServerError", "PSYNC_S2001", 500, "Something went wrong")


def status_of(error: HeadwaterError) -> int:
    """HTTP status of one of our errors."""
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, InvalidRequestError):
        return 400
    return 503 if error.kind is Kind.RETRY else 500


async def on_known_error(_: Request, error: Exception) -> Response:
    """Starlette's hook for errors that we raise on purpose."""
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's hook for what its router refuses."""
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = UnknownRouteError(f"there is nothing at {request.url.path}", fix="check the address")
    return error_response(error)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """Starlette's hook for a bug: the log gets everything, the client a number."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error)


def _body(name: str, code: str, status: int, description: str, details: str = "") -> Response:
    error: dict[str, object] = {"name": name, "code": code, "status": status, "description": description}
    if details:
        error["details"] = details
    return JSONResponse({"error": error}, status_code=status)
