"""Runs the application on uvicorn, and ends it without cutting a stream."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from headwater.errors import HeadwaterError

GRACE_SECONDS = 5
"""How long open requests may take to end. Streams end by themselves within less."""


class AddressInUseError(HeadwaterError):
    """The port can't be listened on."""

    code = "HW_6004"


class ApiServer(uvicorn.Server):
    """A uvicorn server that tells the application of a signal at once. Uvicorn itself only waits for open requests,
    and a stream never ends by itself; the application's own shutdown hook comes after that wait."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="websockets-sansio",
                ws_max_size=2 * 1024 * 1024,
                ws_per_message_deflate=False,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._begin_shutdown: Callable[[], None] = app.state.begin_shutdown
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End open streams, then stop. Unlike uvicorn's, it does not raise the signal again afterwards: an orderly
        end is exit code 0."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_shutdown)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises AddressInUseError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise AddressInUseError(
            f"can't listen on port {port}: {error.strerror}", f"{host}:{port}", "set another `port`"
        ) from error


def serve_app(app: Starlette, host: str, port: int, *, sockets: list[socket.socket] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; blocks. With `sockets`, those are used and `host` and `port` are not."""
    ApiServer(app).run(sockets or [bind(host, port)])


def _is_news(record: logging.LogRecord) -> bool:
    """The stream's own line has said already why it was cut off."""
    return "without completing response" not in record.getMessage()
