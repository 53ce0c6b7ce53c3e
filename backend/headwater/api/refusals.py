"""Counts refused requests, and logs them at a limited rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import HTTPConnection, Request

from headwater.api.errors import ApiError
from headwater.api.http.requests import request_id, route_of
from headwater.telemetry.log_facts import log_extra

SECONDS = 60.0
"""The least time between two log lines about the same code and user."""

MOST_LINES = 200
"""The most pairs of code and user that are logged within that time. Others are only counted."""

_LONGEST = 300  # characters of what a client chose

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Logged:
    until: float
    again: int = 0


class Refusals:
    """The refusals of one process. Not thread-safe: use it in one event loop, except `counts`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[str, int] = {}
        self._logged: dict[tuple[str, str | None], _Logged] = {}

    def counts(self) -> dict[str, int]:
        """Refusals since the process started, by code. Safe to call from any thread."""
        return self._counts.copy()

    def note(
        self,
        code: str,
        user_id: str | None,
        what: str,
        facts: Mapping[str, object],
        level: int = logging.WARNING,
        about: str | None = None,
    ) -> None:
        """Count a refusal, and log `what` with the facts unless this code and user were logged within SECONDS.

        `user_id` comes from a verified token; requests without one (None) share one log line per code. What is no
        user's fault has one per code and what it is `about`. Facts must not contain any part of a token.
        """
        self._counts[code] = self._counts.get(code, 0) + 1
        key = (code, about or user_id)
        known = self._logged.get(key)
        now = self._now()
        if known is not None and now < known.until:
            known.again += 1
            return
        if known is None and not self._may_log(now):
            return
        self._logged[key] = _Logged(now + SECONDS)
        before = {"not_told_since": known.again} if known is not None and known.again else {}
        log.log(level, what, extra=log_extra({"code": code, "user_id": user_id, **facts, **before}))

    def note_refused(self, error: ApiError, address: str | None) -> None:
        """Count and log a refusal without a verified token. The line contains nothing that the client sent."""
        facts = {"status": error.status, "reason": error.what, "address": address}
        self.note(error.code, None, "request refused", facts)

    def _may_log(self, now: float) -> bool:
        if len(self._logged) >= MOST_LINES:
            self._logged = {key: logged for key, logged in self._logged.items() if now < logged.until}
        return len(self._logged) < MOST_LINES


def prove(request: Request, user_id: str) -> None:
    """Store the user of a request's verified token with the request."""
    request.state.user_id = user_id


def proven(request: HTTPConnection) -> str | None:
    """The user of the request's verified token; None when none was verified."""
    user_id: str | None = getattr(request.state, "user_id", None)
    return user_id


def facts_of(request: HTTPConnection) -> dict[str, object]:
    """Facts about a request for the log. Leaves out the query and the headers that may contain a token. A websocket
    keeps these, so they are short."""
    agent = request.headers.get("x-user-agent") or request.headers.get("user-agent")
    return {
        "request_id": request_id(request.scope),
        "route": route_of(request.scope),
        "method": request.scope.get("method", "websocket"),
        "path": request.url.path[:_LONGEST],
        "address": request.client.host if request.client else None,
        "user_agent": agent and agent[:_LONGEST],
    }
