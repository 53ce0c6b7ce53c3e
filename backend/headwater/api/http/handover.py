"""Lets an answer take over the connection of its request, so that the request can end before the answer does.

Most streams are idle, and most of the memory of an idle one would be its request: parser, headers, routes, tasks.
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
    """A connection that was taken over."""

    def when_lost(self, then: Callable[[], None]) -> None:
        """Call `then` once the connection is lost, or now if it is lost already."""


class Origin(Protocol):
    """The protocol of a connection during a request."""

    def hand_over(self) -> Lasting:
        """Give the connection away. Raises GoneError when the client has disconnected or was refused."""


Taken = TypeVar("Taken", bound=Lasting)


def offer(scope: HTTPScope | WebSocketScope, transport: asyncio.BaseTransport) -> None:
    """Allow `take_over` for a request. The transport's protocol must be an Origin."""
    scope.setdefault("extensions", {})[_EXTENSION] = {_TRANSPORT: transport}


def take_over(scope: Scope, kind: type[Taken]) -> Taken:
    """Take over the connection of a request. `kind` is the type that its protocol hands over. Raises GoneError."""
    place = scope["extensions"][_EXTENSION]
    before = place[_TRANSPORT].get_protocol()
    if before is None:
        raise GoneError
    taken = cast(Origin, before).hand_over()
    assert isinstance(taken, kind)
    place[_TAKEN] = taken
    return taken


def when_over(scope: Scope, then: Callable[[], None]) -> None:
    """Call `then` once a request is over: now, or when its connection is lost if that was taken over. Call this after
    the application has returned."""
    taken: Lasting | None = scope.get("extensions", {}).get(_EXTENSION, {}).get(_TAKEN)
    if taken is None:
        then()
    else:
        taken.when_lost(then)
