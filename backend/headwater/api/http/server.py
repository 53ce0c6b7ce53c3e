"""Runs the application on uvicorn, and shuts it down without cutting off streams."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import FrameType
from typing import Literal

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.api.http.doorman import DoorConfig, Doorman
from headwater.api.http.limits import HttpLimits
from headwater.api.http.protocol import BoundedProtocol
from headwater.api.http.websocket import BoundedWebSocket
from headwater.api.refusals import Refusals
from headwater.errors import HeadwaterError

PING_SECONDS = 60.0
"""How long the peer of a websocket may send nothing, and take nothing that waits for it, after a ping."""

GRACE_SECONDS = 5
"""How long open requests may take to end after the drain."""

_OTHER_FILES = 500  # files that may be open besides connections of devices
_FEW = 250  # connections of operators' tools
_NO_NEWS = (
    "without completing response",  # the stream has logged why it was cut off
    "Invalid HTTP request",  # Refusals counts and logs these
    "WebSocket",  # a line for each connection, with its query, which may contain a token
    "connection ",
    "Invalid UTF-8",
    "Waiting for ",
)

log = logging.getLogger(__name__)


class AddressInUseError(HeadwaterError):
    """The server can't listen on its port."""

    code = "HW_6004"


class BoundedServer(uvicorn.Server):
    """A uvicorn server for strangers, whom `limits` bound."""

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        refusals: Refusals,
        lifespan: Literal["on", "off"],
        beside: Collection[int] = (),
    ) -> None:
        """`beside` are ports whose connections are counted by themselves."""
        config = DoorConfig(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            ws=BoundedWebSocket,
            lifespan=lifespan,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(limits.trusted_proxies),
            forwarded_allow_ips=[str(network) for network in limits.trusted_proxies],
            ws_ping_timeout=PING_SECONDS,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=math.ceil(limits.drain_seconds) + GRACE_SECONDS,
        )
        config.doorman = Doorman(limits, refusals)
        config.beside = {port: Doorman(replace(limits, max_connections=_FEW), refusals) for port in beside}
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in order; at once when told a second time. Unlike uvicorn's, it does not raise the signal again
        afterwards: an orderly end is exit code 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


class ApiServer(BoundedServer):
    """Tells the application of its end. Uvicorn itself only waits for open requests, and a stream never ends by itself;
    the application's own shutdown hook comes after that wait. `beside` are answered at their ports, all else by
    `app`."""

    def __init__(self, app: Starlette, beside: Mapping[int, ASGIApp] | None = None) -> None:
        state, beside = app.state, dict(beside or {})
        if state.admin_port is not None:
            beside[state.admin_port] = app  # its connections are counted apart, so that a full house lets operators in
        super().__init__(_ByPort(app, beside) if beside else app, state.http_limits, state.refusals, "on", beside)
        self.config.ws_ping_timeout = max(PING_SECONDS, state.stalled_seconds)
        self._begin_shutdown: Callable[[], None] = app.state.begin_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, then end open requests, streams spread over `drain_seconds`."""
        for server in self.servers:
            server.close()
        self._begin_shutdown()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn then skips the application's shutdown hook
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()


class _ByPort:
    """An ASGI application that is several, by the port of ours that a request came in at."""

    def __init__(self, app: ASGIApp, beside: Mapping[int, ASGIApp]) -> None:
        self._app = app
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port: int = (scope.get("server") or ("", 0))[1]
        await self._beside.get(port, self._app)(scope, receive, send)


def bind(host: str, port: int, setting: str = "port") -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises AddressInUseError, which names the setting."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise AddressInUseError(
            f"can't listen on port {port}: {error.strerror}", f"{host}:{port}", f"set another `{setting}`"
        ) from error


def serve_app(app: Starlette, sockets: list[socket.socket], beside: Mapping[int, ASGIApp] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; blocks. `beside` are applications for some of the ports."""
    limits: HttpLimits = app.state.http_limits
    _allow_files(limits.max_connections + _OTHER_FILES)
    ApiServer(app, beside).run(sockets)


def _allow_files(wanted: int) -> None:
    """Raise the process's limit of open files to `wanted`, as far as its hard limit allows. Each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # macOS enforces a lower limit than it reports
        allowed = soft
    if allowed < wanted:
        log.warning("the machine allows %d open files, too few for api.http.max_connections; raise ulimit -n", allowed)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to keep a log record of uvicorn: it repeats no log line of ours, and is not about a cancelled request."""
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not any(words in str(record.msg) for words in _NO_NEWS)
