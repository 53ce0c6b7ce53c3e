"""Runs the application on uvicorn, and shuts it down without cutting off streams."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import resource
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum, auto
from types import FrameType
from typing import TYPE_CHECKING, Literal

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.api.http.connections import ConnectionLimiter, LimitedConfig, Turns
from headwater.api.http.protocol import BoundedProtocol
from headwater.api.http.websocket import BoundedWebSocket
from headwater.api.limits import HttpLimits
from headwater.api.refusals import Refusals
from headwater.errors import HeadwaterError

PING_SECONDS = 60.0
"""How long the peer of a websocket may send nothing, and take nothing that waits for it, after a ping."""

GRACE_SECONDS = 5
"""How long open requests may take to end after the drain."""

_BACKLOG = 2048
_OTHER_FILES = 500  # files that may be open besides connections of devices
_OPERATORS, _FEWEST_OPERATORS = 100, 20  # connections of operators, and where few connections are allowed
_IGNORED_MESSAGES = (
    "without completing response",  # the stream has logged why it was cut off
    "Invalid HTTP request",  # Refusals counts and logs these
    "WebSocket",  # a line for each connection, with its query, which may contain a token
    "connection ",
    "Invalid UTF-8",
    "Waiting for ",
)

if TYPE_CHECKING:
    from headwater.api.app import ApiApp

log = logging.getLogger(__name__)


class AddressInUseError(HeadwaterError):
    """The server can't listen on its port."""

    code = "HW_6004"


class BoundedServer(uvicorn.Server):
    """A uvicorn server that enforces `limits` on untrusted clients."""

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        refusals: Refusals,
        lifespan: Literal["on", "off"],
        beside: Collection[int] = (),
    ) -> None:
        """`beside` are ports whose connections are counted by themselves."""
        config = LimitedConfig(
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
            backlog=limits.max_connections,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=math.ceil(limits.drain_seconds) + GRACE_SECONDS,
        )
        config.limiter, config.turns = ConnectionLimiter(limits, refusals), Turns()
        few = replace(limits, max_connections=min(_OPERATORS, max(_FEWEST_OPERATORS, limits.max_connections // 4)))
        config.beside = {port: ConnectionLimiter(few, refusals) for port in beside}
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_keep_record)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully; at once on a second signal. Unlike uvicorn, do not raise the signal again
        afterwards: a graceful shutdown is exit code 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


class ApiServer(BoundedServer):
    """Tells the application when it shuts down. Uvicorn itself only waits for open requests, and a stream never ends
    by itself; the application's own shutdown hook comes after that wait. `beside` are answered at their ports, all
    else by `app`. The event loop calls `beat` every second."""

    def __init__(
        self,
        app: ApiApp,
        beside: Mapping[int, ASGIApp] | None = None,
        beat: Callable[[], None] = lambda: None,
        limits: HttpLimits | None = None,
    ) -> None:
        self.endpoint = app.endpoint
        settings, by_port = app.endpoint.settings, dict(beside or {})
        if settings.admin is not None and settings.admin.port is not None:
            by_port[settings.admin.port] = (
                app.operators
            )  # with its own limit, so that operators can connect when devices have reached theirs
        everything = _PortRouter(app, by_port) if by_port else app
        super().__init__(everything, limits or settings.http, app.endpoint.refusals, "on", by_port)
        self.config.ws_ping_timeout = max(PING_SECONDS, settings.streams.client_read_timeout_seconds)
        self._beat = beat

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        if counter % 10 == 0:
            self._beat()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, then end open requests, streams spread over `drain_seconds`."""
        for server in self.servers:
            server.close()
        self.endpoint.begin_shutdown()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn then skips the application's shutdown hook
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()


class _PortRouter:
    """Routes requests to one of several applications, by the port at which they arrived."""

    def __init__(self, app: ASGIApp, beside: Mapping[int, ASGIApp]) -> None:
        self._app = app
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port: int = (scope.get("server") or ("", 0))[1]
        await self._beside.get(port, self._app)(scope, receive, send)


class Shared(Enum):
    """Whether processes share a port: not at all; each listening for its part of the connections; or only kept for
    those who do."""

    NO = auto()
    LISTENING = auto()
    KEPT = auto()


def bind(
    host: str, port: int, setting: str = "port", *, shared: Shared = Shared.NO, backlog: int = _BACKLOG
) -> socket.socket:
    """A listening socket, unless it is KEPT; port 0 takes a free one. `backlog` is how many connections may wait to be
    accepted; the machine's net.core.somaxconn may allow fewer. Raises AddressInUseError, which names the setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if shared is Shared.KEPT:
            return _kept(family, host, port)
        return socket.create_server((host, port), family=family, backlog=backlog, reuse_port=shared is Shared.LISTENING)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        first = "stop what listens there" if error.errno == errno.EADDRINUSE else "correct the host"
        raise AddressInUseError(
            f"can't listen on port {port}: {reason}", f"{host}:{port}", f"{first}, or set another `{setting}`"
        ) from error


def reachable_host(host: str) -> str:
    """The host by which this machine reaches what listens on `host`, which may mean all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared only


def _kept(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    kept = socket.socket(family)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as create_server does
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for connections that ended a moment ago
        kept.bind((host, port))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # or another service could listen here
    except BaseException:
        kept.close()
        raise
    return kept


def serve_app(
    app: ApiApp,
    sockets: list[socket.socket],
    beside: Mapping[int, ASGIApp] | None = None,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT; blocks. `beside` are applications for some of the ports. The event loop calls
    `beat` every second, which shows that it does not hang."""
    limits = app.endpoint.settings.http
    for host, port, *_ in (each.getsockname() for each in sockets):
        log.info("listening on port %d of %s", port, host)
    allowed = replace(limits, max_connections=_allowed_connections(limits.max_connections))
    ApiServer(app, beside, beat, allowed).run(sockets)


def _allowed_connections(connections: int) -> int:
    """How many of these connections may be open. Each is an open file, and those that the store and the rest need are
    not left to connections, also where the machine allows few."""
    wanted = connections + _OTHER_FILES
    allowed = _allow_files(wanted)
    possible = min(connections, allowed - min(_OTHER_FILES, allowed // 2))
    if possible < connections:
        log.warning(
            "the machine allows %d open files, so there may be %d connections and not api.http.max_connections (%d); "
            "raise ulimit -n",
            allowed,
            possible,
            connections,
        )
    return possible


def _allow_files(wanted: int) -> int:
    """Raise the process's limit of open files to `wanted`, as far as its hard limit allows. Returns how many may be
    open, which may be more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # macOS enforces a lower limit than it reports
        return soft
    return allowed


def _keep_record(record: logging.LogRecord) -> bool:
    """Whether to keep a log record of uvicorn: it repeats no log line of ours, and is not about a cancelled request."""
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not any(words in str(record.msg) for words in _IGNORED_MESSAGES)
