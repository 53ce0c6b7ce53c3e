"""Turns errors into HTTP answers: one JSON shape and a status, never a stack trace or the message of an inner error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from headwater.api.errors import RETRY_SECONDS, ApiError, TooManyRequestsError
from headwater.api.findings import RefusedRulesError, RuleFinding
from headwater.api.refusals import Refusals, facts_of, proven
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.sync.request import InvalidRequestError
from headwater.telemetry.log_facts import log_extra

_FOR_NOW = frozenset({429, 503})

UNEXPECTED_CODE: Final = "PSYNC_S2001"
"""The code of errors that have none of their own."""


class ErrorDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error. `code` is stable, `name` is not; `details` says what to do. A sync config that is refused has
    `findings`."""

    name: str
    code: str
    status: int
    description: str
    details: str = ""
    findings: tuple[RuleFinding, ...] = ()


def error_details(error: Exception) -> ErrorDetails:
    """What a client may know of an error. Inner errors stay in the log, since they may name hosts and files."""
    match error:
        case ApiError():
            known = error.code, error.status, error.what, error.fix
        case InvalidRequestError():
            known = error.code, 400, error.what, ": ".join(filter(None, (error.where, error.fix)))
        case HTTPException():
            known = UNEXPECTED_CODE, error.status_code, error.detail, ""
        case HeadwaterError(kind=Kind.RETRY):
            known = error.code, 503, "the service can't reach a database it needs", "try again"
        case HeadwaterError():
            known = error.code, 500, "the service is not able to answer", "see its log"
        case _:
            known = UNEXPECTED_CODE, 500, "Something went wrong", "see the service's log"
    findings = error.findings if isinstance(error, RefusedRulesError) else ()
    return ErrorDetails(type(error).__name__, *known, findings)


def error_response(error: Exception, beside: Mapping[str, object] = MappingProxyType({})) -> Response:
    """The answer to a request that failed with `error`. Its JSON also has the keys of `beside`."""
    known = error_details(error)
    headers = _headers(error, known.status)
    if isinstance(error, TooManyRequestsError):
        return Response(status_code=known.status, headers=headers)
    body = msgspec.json.encode({"error": known, **beside})
    return Response(body, known.status, headers, media_type="application/json")


def _headers(error: Exception, status: int) -> dict[str, str]:
    """Headers of an error: Retry-After for each status in _FOR_NOW."""
    if isinstance(error, HTTPException):
        return dict(error.headers or {})
    if status not in _FOR_NOW:
        return {}
    return {"retry-after": str(error.retry_after if isinstance(error, ApiError) else RETRY_SECONDS)}


log = logging.getLogger(__name__)


def exception_handlers(refusals: Refusals) -> dict[type[Exception], ExceptionHandler]:
    """The exception handlers of the application. They log and count what they answer."""

    def refused(request: Request, error: Exception, code: str, reason: str, level: int = logging.WARNING) -> Response:
        response = error_response(error)
        facts = {"status": response.status_code, "reason": reason, **facts_of(request)}
        refusals.note(code, proven(request), "request refused", facts, level)
        return response

    async def on_known_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadwaterError)
        if isinstance(error, ApiError | InvalidRequestError):
            return refused(request, error, error.code, error.what)
        return refused(request, error, error.code, str(error), logging.ERROR)  # the log also has the inner error

    async def on_http_error(request: Request, error: Exception) -> Response:
        """Handle what Starlette's router refuses: an unknown path or a wrong method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            unknown = ApiError(f"no route matches {request.url.path}", fix="check the address", code="PSYNC_S2002")
            return refused(request, unknown, unknown.code, unknown.what)
        return refused(request, error, UNEXPECTED_CODE, error.detail)

    async def on_client_gone(request: Request, error: Exception) -> Response:
        """Handle a client that left before its request was complete, or took too long. No answer can be sent."""
        log.debug("client disconnected before its request was complete", extra=log_extra(facts_of(request)))
        return Response(status_code=400)

    async def on_unexpected_error(request: Request, error: Exception) -> Response:
        """Handle a bug: log the traceback, and send the client only the code."""
        log.error("request failed", extra=log_extra(facts_of(request)), exc_info=error)
        return error_response(error)

    return {
        HeadwaterError: on_known_error,
        HTTPException: on_http_error,
        ClientDisconnect: on_client_gone,
        Exception: on_unexpected_error,
    }
