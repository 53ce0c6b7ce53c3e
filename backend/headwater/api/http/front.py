"""The outermost ASGI middleware: CORS, a limit on requests per address, and the last handler of exceptions."""

from __future__ import annotations

import logging
import time
from functools import partial

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.error_answers import error_response
from headwater.api.http.crowd import network_of
from headwater.api.http.errors import TooManyFromAddressError
from headwater.api.http.handover import when_over
from headwater.api.http.limits import HttpLimits
from headwater.api.http.requests import Answer, Requests
from headwater.api.quota import Quota
from headwater.api.refusals import Refusals, facts_of, proven
from headwater.telemetry.log_facts import log_extra

log = logging.getLogger(__name__)


class Front:
    """The outermost ASGI application. It limits the requests in progress of each client address, as a trusted proxy
    reports it. Direct clients are already limited by their connections."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, refusals: Refusals, requests: Requests) -> None:
        self._behind = app
        self._refusals = refusals
        self._requests = requests
        self._most = limits.max_connections_per_address
        self._quota = Quota(0, self._most, self._too_many)
        self._app = CORSMiddleware(
            self._admit,
            allow_origins=["*"],
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # tools that trace requests in browsers add headers of their own
            allow_private_network=True,
            expose_headers=["Content-Type", "Retry-After", "X-Request-Id"],
            max_age=3600,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._behind(scope, receive, send)
            return
        began, answer = time.monotonic(), Answer(self._requests, scope, send)
        try:
            await self._enter(scope, receive, answer)
        finally:
            if log.isEnabledFor(logging.DEBUG):
                _tell(scope, answer, time.monotonic() - began)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = scope["client"][0] if scope.get("client") else ""
        place = network_of(host)
        try:
            self._quota.take(place)
        except TooManyFromAddressError as error:
            self._refusals.note_refused(error, host)
            answer = WebSocketClose() if scope["type"] == "websocket" else error_response(error)
            await answer(scope, receive, send)
            return
        try:
            await self._behind(scope, receive, send)
        except Exception:
            if scope["type"] != "http":
                raise  # an HTTP error was answered and logged already; Starlette raises it again for the server
        finally:
            when_over(scope, partial(self._quota.release, place))

    def _too_many(self, *, of_key: bool) -> TooManyFromAddressError:
        return TooManyFromAddressError(
            f"{self._most} requests from this address are in progress", fix="try again later"
        )


def _tell(scope: Scope, answer: Answer, seconds: float) -> None:
    connection = HTTPConnection(scope)
    facts = {
        "user_id": proven(connection),
        "status": answer.status,
        "duration_ms": round(seconds * 1000),
        **facts_of(connection),
    }
    log.debug("request answered", extra=log_extra(facts))
