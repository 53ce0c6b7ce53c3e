"""Serves assistants over HTTP, each with the token that it sends. Requests stand by themselves: there are no sessions
that somebody could take over, and a token that leaves the service's config is refused at once."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, cast

import click
import msgspec
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.api.auth.verify import token_of
from headwater.api.http.server import BoundedServer, bind
from headwater.api.limits import HttpLimits, address_of
from headwater.api.refusals import Refusals
from headwater.api.studio.tokens import Role
from headwater.cli.mcp.client import AdminApiError, AdminClient, said
from headwater.cli.mcp.server import Asker, AssistantServer, Context
from headwater.cli.watching import set_up_logging

PATH: Final = "/mcp"
OPERATOR: Final = "/api/headwater/v1/operator"

_NAMES_OF_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MOST_BODY = 4 * 1024 * 1024  # a sync config, and what is around it
_ASKER = "headwater.asker"

log = logging.getLogger(__name__)


class _Operator(Struct, frozen=True):
    role: Role


class _Answer(Struct, frozen=True):
    data: _Operator


class Door:
    """Lets those in whom the admin API knows by their token; all others get 401, and 502 while it does not answer."""

    def __init__(self, app: ASGIApp, client: AdminClient, *, writes: bool) -> None:
        self._app = app
        self._client = client
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        token = token_of(Headers(scope=scope).get("authorization")) or ""
        try:
            role = await self._role(token) if token and token.isascii() else None
        except AdminApiError as error:
            log.warning("an assistant was refused: %s", error)
            await _refusal(HTTPStatus.BAD_GATEWAY, "the service does not answer; see the log")(scope, receive, send)
            return
        if role is None:
            told = _refusal(HTTPStatus.UNAUTHORIZED, "send one of the service's api.tokens as: Authorization: Bearer …")
            told.headers["www-authenticate"] = "Bearer"
            await told(scope, receive, send)
            return
        asker = Asker(self._client.of(token), self._writes and role is Role.EDIT)
        await self._app({**scope, _ASKER: asker}, receive, send)

    async def _role(self, token: str) -> Role | None:
        """What the token's holder may do; None for a stranger."""
        status, body = await self._client.of(token).send("GET", OPERATOR)
        if status == HTTPStatus.UNAUTHORIZED:
            return None
        try:
            return msgspec.json.decode(body, type=_Answer).data.role
        except msgspec.DecodeError:
            raise AdminApiError(f"the admin API does not say who asks: {said(status, body)}") from None


def asker_of(context: Context) -> Asker:
    """Who sent the request of a call."""
    request = cast("Request", context.request)  # the transport's, which the library does not type
    return cast("Asker", request.scope[_ASKER])


def app_of(client: AdminClient, hosts: Sequence[str], *, writes: bool) -> ASGIApp:
    """The application. `hosts` are the names of this server in URLs, beside those of the loopback."""
    served = AssistantServer(asker_of).server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        max_request_body_size=_MOST_BODY,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[pattern for name in (*_NAMES_OF_LOOPBACK, *hosts) for pattern in (name, f"{name}:*")],
            allowed_origins=[
                pattern
                for origin in (
                    *(f"http://{name}" for name in _NAMES_OF_LOOPBACK),
                    *(f"https://{name}" for name in hosts),
                )
                for pattern in (origin, f"{origin}:*")
            ],
        ),
    )
    return Door(served, client, writes=writes)


def run(client: AdminClient, address: str, hosts: Sequence[str], *, writes: bool) -> None:
    """Serve at `address`, HOST:PORT, until SIGTERM or SIGINT. Raises click.UsageError for an address that is none, and
    for one that others reach when no `hosts` say that there is a proxy with TLS before it."""
    host, port = _parsed(address)
    if not _is_loopback(host) and not hosts:
        raise click.UsageError(
            f"{host} is not the loopback, and tokens would cross the network in the clear: listen on 127.0.0.1, or put "
            "a proxy with TLS in front and give its name as --allow-host"
        )
    set_up_logging()
    listening = bind(host, port, "--http")
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"serving assistants at http://{shown}:{listening.getsockname()[1]}{PATH}", err=True)
    if not _is_loopback(host):
        log.warning("%s is reached from outside, without TLS: let nobody but the proxy of %s reach it", host, hosts[0])
    _serve(app_of(client, hosts, writes=writes), listening)


def _serve(app: ASGIApp, listening: socket.socket) -> None:
    limits = HttpLimits(max_connections=1000, max_connections_per_address=0, drain_seconds=0)
    BoundedServer(app, limits, Refusals(), "on").run([listening])


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError(f"--http is no address: {address}; write it like 127.0.0.1:8090")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def _refusal(status: HTTPStatus, why: str) -> Response:
    return JSONResponse({"error": status.phrase.lower(), "error_description": why}, status)
