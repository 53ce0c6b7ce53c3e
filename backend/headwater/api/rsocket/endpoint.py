"""Serves RSocket over websockets at any path: clients name the stream's path inside the protocol."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from headwater.api.auth.verify import Verifier
from headwater.api.http.handover import take_over
from headwater.api.http.requests import name_of
from headwater.api.http.websocket import BoundedWebSocket
from headwater.api.refusals import Refusals, facts_of
from headwater.api.rsocket.connection import Connection
from headwater.api.streams.service import Streams
from headwater.api.tasks import Tasks


class RSocketEndpoint:
    """The ASGI endpoint. A connection goes on in a task of its own when its request is over."""

    def __init__(self, streams: Streams, verifier: Verifier, refusals: Refusals, tasks: Tasks) -> None:
        self._streams = streams
        self._verifier = verifier
        self._refusals = refusals
        self._tasks = tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = WebSocket(scope, receive, send)
        await asked.accept()
        websocket = take_over(scope, BoundedWebSocket)
        name, facts = name_of(scope), facts_of(asked)
        connection = Connection(websocket, name, facts, self._verifier, self._streams, self._refusals)
        self._tasks.start(connection.run())
