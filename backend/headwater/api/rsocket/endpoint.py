"""Websockets, at whatever path they come: clients ask for the stream within."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from headwater.api.auth.verify import Verifier
from headwater.api.refusals import Refusals
from headwater.api.rsocket.connection import Connection
from headwater.api.streams.service import Streams


class RSocketEndpoint:
    """The ASGI endpoint."""

    def __init__(self, streams: Streams, verifier: Verifier, refusals: Refusals) -> None:
        self._streams = streams
        self._verifier = verifier
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        await websocket.accept()
        await Connection(websocket, self._verifier, self._streams, self._refusals).run()
