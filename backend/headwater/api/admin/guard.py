"""Guards all admin routes: no request without an admin token gets to any of them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Mount, Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.admin.errors import AdminRefusedError
from headwater.api.auth.verify import token_of

PREFIX = "/api"
"""Every path that begins with this is guarded, whether such a route exists or not."""


class AdminRoutes(Mount):
    """The admin routes. The token is checked before the rest of the path and the body are read, so that an unknown
    route, a wrong method and a route that somebody adds later are refused alike. With `port`, the routes exist only for
    requests to that port of the server."""

    def __init__(self, tokens: Sequence[str], routes: Sequence[BaseRoute], port: int | None = None) -> None:
        self._tokens = tuple(_digest(token) for token in tokens if token.strip())
        self._port = port
        self._router = Router(routes=list(routes), redirect_slashes=False)
        super().__init__(PREFIX, app=self._guarded)

    @property
    def routes(self) -> list[BaseRoute]:
        """The guarded routes. Their paths are without PREFIX."""
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
        """Whether the header has one of the tokens. Takes the same time for each; an empty token never matches."""
        given = token_of(header) or ""
        known = [hmac.compare_digest(_digest(given), token) for token in self._tokens]
        return bool(given) and any(known)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
