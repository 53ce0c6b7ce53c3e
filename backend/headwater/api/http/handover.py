"""Connections that go on when their request is over.

Most streams are idle, and most of what an idle one would cost is its request: parser, headers, routes, tasks. So
whoever answers one may take its connection, and the request ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from starlette.types import Scope
from uvicorn._types import HTTPScope, WebSocketScope

from headwater.api.errors import GoneError

_EXTENSION, _TRANSPORT, _TAKEN = "headwater", "transport", "taken"  # names in an ASGI scope


class Lasting(Protocol):
    """A connection that was taken."""

    def when_lost(self, then: Callable[[], None]) -> None:
        """Call this once the connection is lost; at once if it is."""


class Origin(Protocol):
    """The protocol that a connection has during a request."""

    def hand_over(self) -> Lasting:
        """Give the connection to whoever answers. Raises GoneError when the client has left, or was refused."""


Taken = TypeVar("Taken", bound=Lasting)


def offer(scope: HTTPScope | WebSocketScope, transport: asyncio.BaseTransport) -> None:
    """Let whoever answers this request take its connection, which is that of an Origin."""
    scope.setdefault("extensions", {})[_EXTENSION] = {_TRANSPORT: transport}


def take_over(scope: Scope, kind: type[Taken]) -> Taken:
    """The connection of a request, as what it is for this kind of request. Raises GoneError."""
    place = scope["extensions"][_EXTENSION]
    before = place[_TRANSPORT].get_protocol()
    if before is None:
        raise GoneError
    taken = cast(Origin, before).hand_over()
    assert isinstance(taken, kind)
    place[_TAKEN] = taken
    return taken


def when_over(scope: Scope, then: Callable[[], None]) -> None:
    """Call this at the end of a request that has returned: now, or when the connection is lost that was taken."""
    taken: Lasting | None = scope.get("extensions", {}).get(_EXTENSION, {}).get(_TAKEN)
    if taken is None:
        then()
    else:
        taken.when_lost(then)
