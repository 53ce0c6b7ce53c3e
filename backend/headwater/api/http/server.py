"""Runs the application on uvicorn, and ends it without cutting a stream."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from headwater.api.http.body import MAX_BODY
from headwater.api.http.doorman import DoorConfig, Doorman
from headwater.api.http.limits import HttpLimits
from headwater.api.http.protocol import BoundedProtocol
from headwater.api.http.websocket import BoundedWebSocket
from headwater.errors import HeadwaterError

GRACE_SECONDS = 5
"""How long open requests may take to end, once they are all told to."""

MAX_MESSAGE = 2 * MAX_BODY
"""Bytes of a message of a websocket: a request is one, with what is around it."""

_OTHER_FILES = 500  # open ones beside connections
_NO_NEWS = (
    "without completing response",  # the stream's own line has said why it was cut off
    "Invalid HTTP request",  # each is counted, and told of now and then
    "WebSocket",  # a line for each, with its query, which may have a token
    "connection ",
    "Invalid UTF-8",
    "Waiting for ",
)

log = logging.getLogger(__name__)


class AddressInUseError(HeadwaterError):
    """The port can't be listened on."""

    code = "HW_6004"


class ApiServer(uvicorn.Server):
    """A uvicorn server that tells the application of its end. Uvicorn itself only waits for open requests, and a stream
    never ends by itself; the application's own shutdown hook comes after that wait."""

    def __init__(self, app: Starlette) -> None:
        limits: HttpLimits = app.state.http_limits
        config = DoorConfig(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            ws=BoundedWebSocket,
            ws_max_size=MAX_MESSAGE,
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(limits.trusted_proxies),
            forwarded_allow_ips=[str(network) for network in limits.trusted_proxies],
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=math.ceil(limits.drain_seconds) + GRACE_SECONDS,
        )
        config.doorman = Doorman(limits, app.state.refusals)
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._begin_shutdown: Callable[[], None] = app.state.begin_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no connection any more, then end what is open, over the time that the limits say."""
        for server in self.servers:
            server.close()
        self._begin_shutdown()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn then leaves out the application's own end
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in order; at once when told a second time. Unlike uvicorn's, it does not raise the signal again
        afterwards: an orderly end is exit code 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


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
    listening = sockets or [bind(host, port)]
    limits: HttpLimits = app.state.http_limits
    _allow_files(limits.max_connections + _OTHER_FILES)
    ApiServer(app).run(listening)


def _allow_files(wanted: int) -> None:
    """Let the process open so many files, each connection being one, as far as the machine allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # macOS has a limit beyond the one that it names
        allowed = soft
    if allowed < wanted:
        log.warning("the machine allows %d open files, which is less than api.http.max_connections and some", allowed)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether uvicorn says what nobody of ours does, and of more than an end that was not waited for."""
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not any(words in str(record.msg) for words in _NO_NEWS)
