"""The outermost ASGI middleware: CORS, request ids and counts, and a limit on requests per address."""

from __future__ import annotations

import logging
import time
from functools import partial

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.error_answers import error_response
from headwater.api.errors import TooManyFromAddressError
from headwater.api.http.requests import CountedSend, RequestCounts
from headwater.api.http.takeover import on_request_end
from headwater.api.limits import HttpLimits, network_of
from headwater.api.quota import Quota
from headwater.api.refusals import Refusals, facts_of, proven
from headwater.telemetry.log_facts import log_extra

log = logging.getLogger(__name__)


def with_cors(app: ASGIApp) -> ASGIApp:
    """Allow requests from web pages of any origin, which need a token anyway."""
    return CORSMiddleware(
        app,
        allow_origins=["*"],
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],  # tools that trace requests in browsers add headers of their own
        allow_private_network=True,
        expose_headers=["Content-Type", "Retry-After", "X-Request-Id"],
        max_age=3600,
    )


def address_quota(limits: HttpLimits) -> Quota:
    """A quota of requests in progress by client address, as a trusted proxy reports it. Clients that connect directly
    are already limited by their connections."""
    most = limits.most_per_address

    def refuse(*, of_key: bool) -> TooManyFromAddressError:
        return TooManyFromAddressError(f"{most} requests from this address are in progress", fix="try again later")

    return Quota(None, most, refuse)


class RequestMiddleware:
    """Gives each request an id, counts it, and refuses it while its address has too many in progress."""

    def __init__(self, app: ASGIApp, quota: Quota, refusals: Refusals, requests: RequestCounts) -> None:
        self._app = app
        self._quota = quota
        self._refusals = refusals
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        began, answer = time.monotonic(), CountedSend(self._requests, scope, send)
        host = scope["client"][0] if scope.get("client") else ""
        address = network_of(host)
        try:
            self._quota.take(address)
            try:
                await self._app(scope, receive, answer)
            finally:
                on_request_end(scope, partial(self._quota.release, address))
        except TooManyFromAddressError as error:
            self._refusals.note_refused(error, host)
            refusal = WebSocketClose() if scope["type"] == "websocket" else error_response(error)
            await refusal(scope, receive, answer)
        except Exception:
            if scope["type"] != "http":
                raise  # an HTTP error was answered and logged already; Starlette raises it again for the server
        finally:
            if log.isEnabledFor(logging.DEBUG):
                _log_answer(scope, answer, time.monotonic() - began)


def _log_answer(scope: Scope, answer: CountedSend, seconds: float) -> None:
    connection = HTTPConnection(scope)
    facts = {
        "user_id": proven(connection),
        "status": answer.status,
        "duration_ms": round(seconds * 1000),
        **facts_of(connection),
    }
    log.debug("request answered", extra=log_extra(facts))
