"""The sync stream over a websocket: RSocket frames, whose payloads are BSON documents."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headwater_client.errors import MissingExtraError, ProtocolError, RefusedError, TokenRefusedError, UnreachableError
from headwater_client.protocol import rsocket
from headwater_client.protocol.lines import LONGEST, BsonDocuments
from headwater_client.timeouts import within
from headwater_client.transport.http import (
    CONNECT_SECONDS,
    STREAM,
    Credentials,
    Http,
    ServerStream,
    authorization,
    refusal,
    trusted,
    url_of,
)

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

KEEPALIVE_SECONDS: Final = 20.0
_PATIENCE: Final = 3
"""After so many signs of life without a byte from the server, the connection is taken for dead."""

_CLOSE_SECONDS: Final = 0.5

_NOT_THE_TOKEN: Final = re.compile(r"\b(PSYNC_(?!S21)|HW_)\w+")


class Websocket(Http):
    """As `Http`, but each sync stream has a websocket of its own. Raises `MissingExtraError`."""

    def __init__(self, user_agent: str, *, bson: bool = False) -> None:
        super().__init__(user_agent, bson=bson)
        self._user_agent = user_agent
        self._open = connector()

    @asynccontextmanager
    async def stream(self, credentials: Credentials, body: bytes) -> AsyncIterator[ServerStream]:
        import websockets

        url = url_of(credentials, STREAM).replace("http", "ws", 1)
        try:
            async with self._connected(url) as socket:
                opening = _send_all(
                    socket,
                    rsocket.setup(authorization(credentials), self._user_agent, KEEPALIVE_SECONDS),
                    rsocket.request(STREAM, body),
                )
                await within(CONNECT_SECONDS, opening)
                yield ServerStream(_pieces(socket, url), BsonDocuments())
        except websockets.InvalidStatus as error:
            answer = error.response
            text = str(answer.body or b"", "utf-8", "replace")
            raise refusal(STREAM, answer.status_code, f"no websocket; {text}", answer.headers) from error
        except (websockets.WebSocketException, OSError, asyncio.TimeoutError) as error:
            raise UnreachableError(f"{url}: {error or type(error).__name__}") from error

    @asynccontextmanager
    async def _connected(self, url: str) -> AsyncIterator[ClientConnection]:
        socket = await self._open(
            url,
            ssl=trusted() if url.startswith("wss:") else None,
            user_agent_header=self._user_agent,
            open_timeout=CONNECT_SECONDS,
            ping_interval=None,  # RSocket has signs of life of its own
            close_timeout=_CLOSE_SECONDS,
            max_size=LONGEST,
        )
        try:
            yield socket
        finally:
            try:
                # Its own time to close begins once all is sent, which a server that reads nothing does not let happen
                await within(2 * _CLOSE_SECONDS, socket.close())
            except asyncio.TimeoutError:
                socket.transport.abort()


async def _send_all(socket: ClientConnection, *frames: bytes) -> None:
    for frame in frames:
        await socket.send(frame)


async def _pieces(socket: Any, url: str) -> AsyncIterator[bytes]:
    """The documents of the stream. Who takes the next has stored the one before."""
    requester = rsocket.Requester()
    async for message in _messages(socket, url):
        if isinstance(message, str):
            raise ProtocolError("a text came by websocket, which is no RSocket frame")
        for event in requester.receive(message):
            match event:
                case rsocket.Payload():
                    yield event.data
                    more = requester.taken()
                    if more is not None:
                        await _send(socket, more)
                case rsocket.Reply():
                    await _send(socket, event.frame)
                case rsocket.Completed():
                    return
                case rsocket.StreamFailed():
                    raise _failure(event.text)


async def _messages(socket: Any, url: str) -> AsyncIterator[bytes | str]:
    """What comes, with signs of life from us in between. Raises `UnreachableError` where not a byte comes back."""
    due, unanswered, heard = time.monotonic() + KEEPALIVE_SECONDS, 0, socket.heard
    while unanswered <= _PATIENCE:
        left = due - time.monotonic()
        if left > 0:
            try:
                yield await within(left, socket.recv())
                unanswered = 0
                continue
            except asyncio.TimeoutError:
                # Over a slow link a part of a long message may have come
                unanswered = unanswered + 1 if socket.heard == heard else 0
                heard = socket.heard
        await _send(socket, rsocket.keepalive())
        due = time.monotonic() + KEEPALIVE_SECONDS
    raise UnreachableError(f"{url}: the server has been silent for too long")


async def _send(socket: ClientConnection, frame: bytes) -> None:
    """Send a frame that a server which has hung up does not need: what it sent before that is still to be read."""
    import websockets

    with suppress(websockets.ConnectionClosed):
        await within(CONNECT_SECONDS, socket.send(frame))


def _failure(text: str) -> RefusedError:
    """What an error frame means. One without a code may come from a proxy that wants another token, too."""
    kind = RefusedError if _NOT_THE_TOKEN.search(text) else TokenRefusedError
    return kind(STREAM, None, text)


def connector() -> Any:
    """What opens a websocket, which counts in `heard` how often bytes came. Raises `MissingExtraError`."""
    try:
        from websockets.asyncio.client import ClientConnection, connect
    except ImportError:
        raise MissingExtraError("a stream over a websocket", "websocket") from None
    BsonDocuments()

    class CountingConnection(ClientConnection):
        heard = 0

        def data_received(self, data: bytes) -> None:
            self.heard += 1
            super().data_received(data)

    return partial(connect, create_connection=CountingConnection)
