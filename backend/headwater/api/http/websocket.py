"""A websocket from the open internet: uvicorn's, with bounds on what a peer makes it keep.

The size of a message is bounded by uvicorn's own setting, and sending waits for a peer that does not read.
"""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from headwater.api.http.doorman import DoorConfig

MOST_FRAMES = 1024
"""Frames of one message: an empty one adds nothing to its size, and yet is kept."""

LINGER_SECONDS = 5.0
"""How long a peer may take for what is left once its connection is closed."""

LAST_SECONDS = 1.0
"""How long the last streams have for their last words."""

_TOO_BIG = 1009


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One websocket, on a connection that came in as HTTP."""

    _lost: Callable[[], None] | None = None

    def when_lost(self, then: Callable[[], None]) -> None:
        """Call this once the connection is lost."""
        self._lost = then

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._lost is not None:
            self._lost()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._linger()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._linger()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._linger()

    def _linger(self) -> None:
        """A transport that is closed waits for its peer to take what is left. It does not wait for ever."""
        if self.transport.is_closing() and not self.disconnected:
            self.loop.call_later(LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            self.transport.abort()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # the peer does not read: its answers would pile up
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MOST_FRAMES:
            super().handle_cont(event)
            return
        self.conn.fail(_TOO_BIG, "too many frames")
        self.handle_parser_exception()

    def shutdown(self) -> None:
        """End when the drain is over: until then what goes over it ends by itself."""
        assert isinstance(self.config, DoorConfig)
        drain = self.config.doorman.limits.drain_seconds + LAST_SECONDS
        self.loop.call_later(drain if self.handshake_complete else 0, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()
