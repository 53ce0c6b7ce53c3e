"""Turns errors of requests into an answer for the client and a log line for the operator."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from headwater.api.error_answers import UNEXPECTED_CODE, error_response
from headwater.api.errors import ApiError, UnknownRouteError
from headwater.api.refusals import Refusals, facts_of, proven
from headwater.errors import HeadwaterError
from headwater.sync.request import InvalidRequestError
from headwater.telemetry.log_facts import log_extra

log = logging.getLogger(__name__)


class ErrorHandlers:
    """The exception handlers of the Starlette application."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self.hooks: dict[type[Exception], ExceptionHandler] = {
            HeadwaterError: self.on_known_error,
            HTTPException: self.on_http_error,
            ClientDisconnect: self.on_client_gone,
            Exception: self.on_unexpected_error,
        }

    async def on_known_error(self, request: Request, error: Exception) -> Response:
        """Handle HeadwaterError."""
        assert isinstance(error, HeadwaterError)
        if isinstance(error, ApiError | InvalidRequestError):
            return self._refused(request, error, error.code, error.what)
        # the inner error is for the log only
        return self._refused(request, error, error.code, str(error), logging.ERROR)

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        """Handle what Starlette's router refuses: an unknown path or a wrong method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            unknown = UnknownRouteError(f"there is nothing at {request.url.path}", fix="check the address")
            return self._refused(request, unknown, unknown.code, unknown.what)
        return self._refused(request, error, UNEXPECTED_CODE, error.detail)

    async def on_client_gone(self, request: Request, error: Exception) -> Response:
        """Handle ClientDisconnect: the client left before its request was complete, or took too long, so no answer can
        be sent."""
        log.debug("client disconnected before its request was complete", extra=log_extra(facts_of(request)))
        return Response(status_code=400)

    async def on_unexpected_error(self, request: Request, error: Exception) -> Response:
        """Handle a bug: log the traceback, and tell the client only the code."""
        log.error("request failed", extra=log_extra(facts_of(request)), exc_info=error)
        return error_response(error)

    def _refused(
        self, request: Request, error: Exception, code: str, reason: str, level: int = logging.WARNING
    ) -> Response:
        response = error_response(error)
        facts = {"status": response.status_code, "reason": reason, **facts_of(request)}
        self._refusals.note(code, proven(request), "request refused", facts, level)
        return response
