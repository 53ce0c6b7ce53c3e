"""Requests as the log and the metrics name them: an id for each, its route, and what became of it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterable, Mapping
from typing import NamedTuple

from starlette.routing import Mount, Route
from starlette.types import Message, Scope, Send

WEBSOCKET = "websocket"
UNKNOWN = "unknown"
"""The route of what is served nowhere."""

_ID = "request_id"


class RequestName(NamedTuple):
    """What a request is called in the log."""

    request_id: str | None
    route: str | None


def name_of(scope: Scope) -> RequestName:
    """The name of a request that was routed."""
    return RequestName(request_id(scope), route_of(scope))


def request_id(scope: Scope) -> str | None:
    """The id of a request that `Answer` was made for."""
    found: str | None = scope.get("state", {}).get(_ID)
    return found


def route_of(scope: Scope) -> str | None:
    """The route that a request was given to, as it was declared: of these there are few. None when there is none."""
    if scope["type"] == "websocket":
        return WEBSOCKET
    root, route = scope.get("root_path", ""), scope.get("route")
    if isinstance(route, Route):
        return f"{root}{route.path}"
    return root or "/" if isinstance(route, Mount) else None


class Requests:
    """How many requests of a process were answered. Lives in the event loop; may be read from any thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def expect(self, routes: Iterable[str]) -> None:
        """Show these from the beginning, so that the first request shows as a rise."""
        self._counts.update({(route, status): 0 for route in routes for status in ("2xx", "4xx", "5xx")})

    def note(self, route: str | None, status: int) -> None:
        """One was answered so."""
        key = (route or UNKNOWN, f"{status // 100}xx")
        self._counts[key] = self._counts.get(key, 0) + 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many, by route and class of status, such as 2xx."""
        return self._counts.copy()


class Answer:
    """The `send` of one request. Gives the request an id, tells the client of it, and counts the answer when it
    begins."""

    __slots__ = ("_requests", "_scope", "_send", "status")

    def __init__(self, requests: Requests, scope: Scope, send: Send) -> None:
        scope.setdefault("state", {})[_ID] = f"{random.getrandbits(64):016x}"
        self._requests = requests
        self._scope = scope
        self._send = send
        self.status: int | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        if self.status is None:
            self._begin(message)
        return self._send(message)

    def _begin(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id)]
            case "websocket.accept":
                self.status = 101
            case "websocket.close":
                self.status = 403
            case _:
                return
        self._requests.note(route_of(self._scope), self.status)

    @property
    def _id(self) -> bytes:
        return (request_id(self._scope) or "").encode()
