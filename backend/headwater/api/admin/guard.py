"""The one door to everything that only operators may ask: whoever has no token gets no further, whatever is behind."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Mount, Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.admin.errors import AdminRefusedError

PREFIX = "/api"
"""What begins with this is behind the guard, whether there is such a route or not."""


class AdminRoutes(Mount):
    """A part of the application that answers nothing before it has seen an admin token: neither the body nor the
    rest of the address is looked at, so that an unknown route, a wrong method and a route that somebody adds are
    refused alike. With `port`, it is there for requests that came in at that port of ours only."""

    def __init__(self, tokens: Sequence[str], routes: Sequence[BaseRoute], port: int | None = None) -> None:
        self._tokens = tuple(_digest(token) for token in tokens if token.strip())
        self._port = port
        self._router = Router(routes=list(routes))
        super().__init__(PREFIX, app=self._guarded)

    @property
    def routes(self) -> list[BaseRoute]:
        """What is behind the door, by paths that go on after the prefix."""
        return self._router.routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self._port is not None and (scope.get("server") or (None, None))[1] != self._port:
            return Match.NONE, {}
        return super().matches(scope)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        if not self._admits(Headers(scope=scope).get("authorization")):
            raise AdminRefusedError
        await self._router(scope, receive, send)

    def _admits(self, header: str | None) -> bool:
        """Whether the header holds one of the tokens. Takes as long for one as for another; an empty one never fits."""
        scheme, _, rest = (header or "").partition(" ")
        given = rest.strip()
        known = [hmac.compare_digest(_digest(given), token) for token in self._tokens]
        return bool(given) and scheme.lower() in {"token", "bearer"} and any(known)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
