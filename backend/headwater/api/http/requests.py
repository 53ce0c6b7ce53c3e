"""Gives each request an id and the name of its route, for the log, and counts answers for the metrics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.types import Message, Scope, Send

from headwater.api.errors import BodyTooLargeError, UnsupportedMediaTypeError

WEBSOCKET = "websocket"
UNKNOWN = "unknown"
"""The route of requests that no route matches."""

_ID = "request_id"


class RequestName(NamedTuple):
    """A request's id and route, for the log."""

    request_id: str | None
    route: str | None


def name_of(scope: Scope) -> RequestName:
    """The id and route of a request that was routed."""
    return RequestName(request_id(scope), route_of(scope))


def request_id(scope: Scope) -> str | None:
    """The id that CountedSend gave to a request."""
    found: str | None = scope.get("state", {}).get(_ID)
    return found


def route_of(scope: Scope) -> str | None:
    """The pattern of the route that matched a request, so that there are few different ones. None without a match."""
    if scope["type"] == "websocket":
        return WEBSOCKET
    root, route = scope.get("root_path", ""), scope.get("route")
    if isinstance(route, Route):
        return f"{root}{route.path}"
    return root or "/" if isinstance(route, Mount) else None


class RequestCounts:
    """Counts the answered requests of a process. Use it in one event loop; `counts` may be read from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def expect(self, routes: Iterable[str]) -> None:
        """Start these routes at 0, so that Prometheus sees the first request as an increase."""
        self._counts.update({(route, status): 0 for route in routes for status in ("2xx", "4xx", "5xx")})

    def note(self, route: str | None, status: int) -> None:
        self._counts[route or UNKNOWN, f"{status // 100}xx"] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Numbers of answers by route and class of status, such as 2xx."""
        return dict(self._counts)


class CountedSend:
    """Wraps the ASGI `send` of one request. Gives the request an id, adds it as the header x-request-id, and counts the
    answer when it begins."""

    __slots__ = ("_requests", "_scope", "_send", "status")

    def __init__(self, requests: RequestCounts, scope: Scope, send: Send) -> None:
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


MAX_BODY = 1024 * 1024

JSON = "application/json"


async def read_body(
    request: Request, limit: int = MAX_BODY, arrived: Callable[[int], object] = lambda _: None
) -> bytes:
    """Read the whole body, of at most `limit` bytes. Raises BodyTooLargeError as soon as it is known to be larger, and
    ClientDisconnect when the connection ends first; the server ends connections that are too slow. `arrived` is called
    with the number of bytes of each part, and may raise an error."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        arrived(len(part))
        parts.append(part)
    return b"".join(parts)


def require_json(request: Request) -> None:
    """Raise UnsupportedMediaTypeError unless Content-Type is JSON or missing."""
    media_type = request.headers.get("content-type", "")
    if media_type and media_type.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaTypeError("the body is not JSON", "Content-Type header", f"send {JSON}")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body is larger than {limit} bytes", fix="send less")
