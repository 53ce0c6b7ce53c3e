"""Nothing that only operators may ask is answered, or even read, without their token: not now, and not for a route that
somebody adds."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from websockets.exceptions import InvalidStatus

from headwater.api.admin.route import AdminRoutes, AdminSettings
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.limits import HttpLimits
from headwater.api.studio.sessions import Operators
from headwater.api.studio.tokens import AdminToken
from tests.support.fix_admin import NOWHERE, OPERATOR, TOKEN, AdminEndpoint, running_admin
from tests.support.fix_api import AUDIENCE, PlayedHead, jwk, make_token
from tests.support.fix_logs import line_of
from tests.support.memory_store import MemoryStore
from tests.support.plain_http import plain_http
from tests.support.rsocket_client import requester
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore

OF_DEVICES = {"/sync/stream", "/sync/checkpoint-request", "/write-checkpoint.json", "/write-checkpoint2.json"}
PUBLIC = {
    *OF_DEVICES,
    *(f"/sources/{{sources:path}}{path}" for path in OF_DEVICES),
    "/probes/startup",
    "/probes/readiness",
    "/probes/liveness",
    "/studio",
    "/studio/",
    "/studio/session",
}
"""All that anybody may ask, who then has to show a token of his own, or learns nothing but that we live."""

WRONG = (
    "",
    "Token",
    "Token wrong",
    f"Basic {TOKEN}",
    f"Token {TOKEN}x",
    TOKEN,
    f"Token {make_token()}",
    f"Bearer {make_token('admin', role='admin')}",
)


def every_route(routes: Iterable[BaseRoute], before: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of every route, those of mounted parts too."""
    for route in routes:
        if isinstance(route, Mount):
            yield from every_route(route.routes, before + route.path)
        elif isinstance(route, WebSocketRoute):
            assert route.path == "/{path:path}", "the stream's; it has the tokens of users"
        else:
            assert isinstance(route, Route)
            path = before + route.path.replace("{id}", "1")
            yield from ((method, path) for method in route.methods or {"POST"})


WITH_A_SLASH = "GET", "/api/admin/v1/status/"
"""Not sent elsewhere: by the Host header, that would be wherever a stranger wants."""


def test_every_admin_route_needs_the_token(admin: AdminEndpoint) -> None:
    routes = set(every_route(admin.app.routes))
    assert {path for _, path in routes} >= PUBLIC
    shut = sorted((method, path) for method, path in routes if path not in PUBLIC)
    assert len(shut) > 4
    with plain_http(admin.port) as stranger:
        for (method, path), header in product(shut, (None, *WRONG)):
            headers = {} if header is None else {"authorization": header}
            response = stranger.request(method, path, headers=headers, content=b"{")
            assert response.status_code == 401, (method, path, header)
            if method != "HEAD":
                assert response.json()["error"]["code"] == "PSYNC_S2101"
                assert response.json()["error"]["description"] == "Authorization failed"


def test_unknown_path_needs_the_token(admin: AdminEndpoint) -> None:
    wrong = ("GET", "/api/none"), ("DELETE", "/api/admin/v1/status"), ("GET", "/api/"), WITH_A_SLASH
    with plain_http(admin.port) as stranger:
        assert {stranger.request(method, path).status_code for method, path in wrong} == {401}
    for method, path in wrong:
        assert admin.http.request(method, path).status_code in {404, 405}


def test_right_token(admin: AdminEndpoint) -> None:
    for header in (f"Token {TOKEN}", f"token {TOKEN}", f"Bearer  {TOKEN}", f"BEARER\t{TOKEN}"):
        assert admin.http.get("/api/admin/v1/status", headers={"authorization": header}).status_code == 200


@pytest.mark.parametrize("tokens", [(), ("",), ("right", ""), (" ",)], ids=repr)
@pytest.mark.parametrize("header", [None, "", "Token", "Token ", "Token  ", "Bearer \t", "Token wrong", "Basic right"])
def test_admin_routes_with_odd_tokens(tokens: tuple[str, ...], header: str | None) -> None:
    async def inside(_: Request) -> PlainTextResponse:
        raise AssertionError

    app = create_app(ApiSettings(KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE})), MemoryStore(), PlayedHead())
    app.router.routes.insert(
        0, AdminRoutes(Operators([AdminToken(each) for each in tokens]), [Route("/secret", inside)])
    )
    headers = {} if header is None else {"authorization": header}

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", verify=False) as http:
            return (await http.get("/api/secret", headers=headers)).status_code

    assert anyio.run(ask) == 401


def test_body_without_token_is_not_read(admin: AdminEndpoint) -> None:
    with socket.create_connection(("127.0.0.1", admin.port), timeout=60) as stranger:
        head = "POST /api/headwater/v1/deploy HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        stranger.sendall(head.encode())  # and nothing after it
        assert stranger.recv(100).startswith(b"HTTP/1.1 401")


def test_refusals_are_counted_and_logged_once(admin: AdminEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with plain_http(admin.port, {"authorization": "Token wrong"}) as stranger:
        for _ in range(30):
            stranger.get("/api/admin/v1/status")
    assert admin.app.endpoint.refusals.counts() == {"PSYNC_S2101": 30}
    lines = [line_of(record) for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    assert "wrong" not in lines[0]


@contextmanager
def own_port(ruled: RuledStore, limits: HttpLimits | None = None) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    settings = AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))
    with running_admin(settings, own_port=True, limits=limits) as admin:
        yield admin


def test_admin_port_leaves_no_admin_routes_on_the_public_one(ruled: RuledStore) -> None:
    with own_port(ruled) as admin, plain_http(admin.public_port, {"authorization": f"Token {TOKEN}"}) as public:
        assert admin.port != admin.public_port
        for _, path in every_route(admin.app.operators.routes):
            assert path in PUBLIC or public.get(path).status_code == 404, path
        assert admin.http.get("/api/admin/v1/status").status_code == 200
        assert public.get("/probes/readiness").status_code == 200


def test_admin_port_has_no_routes_of_devices(ruled: RuledStore) -> None:
    with own_port(ruled) as admin:
        with plain_http(admin.port) as operator, plain_http(admin.public_port) as device:
            for path in ("/sync/stream", "/sync/checkpoint-request"):
                assert [each.post(path).status_code for each in (operator, device)] == [404, 401]
        with requester(f"http://127.0.0.1:{admin.public_port}") as found:
            found.set_up("nonsense")
            assert found.receive().error[1].startswith("[PSYNC_S2101] ")
        with pytest.raises(InvalidStatus), requester(f"http://127.0.0.1:{admin.port}"):
            pass


def test_admin_port_answers_while_the_public_one_is_full(ruled: RuledStore) -> None:
    full = HttpLimits(max_connections=1, drain_seconds=0)
    with own_port(ruled, full) as admin, socket.create_connection(("127.0.0.1", admin.public_port)):
        assert httpx.get(f"http://127.0.0.1:{admin.public_port}/probes/liveness", verify=False).status_code == 503
        assert admin.http.get("/api/admin/v1/status").status_code == 200
