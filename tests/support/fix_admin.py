"""The admin routes on a real port, over a store that serves a sync config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from headwater.api.admin.route import AdminSettings
from headwater.api.app import ApiApp, ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.http.server import ApiServer, bind
from headwater.api.limits import HttpLimits
from headwater.api.studio.tokens import AdminToken
from headwater.source.connect import SourceSettings
from headwater.storage.open import open_store
from tests.support.plain_http import served
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore

OPENAPI = "/api/headwater/v1/openapi.json"
TOKEN = "an admin token of the tests"
OPERATOR = AdminToken(TOKEN)
SECRET = b"a key of the devices in tests, of sixty-four bytes and some more"
NOWHERE = SourceSettings(host="127.0.0.1", port=1, database="shop", user="app", sslmode="disable", connect_timeout=2)


@dataclass
class AdminEndpoint:
    """A running endpoint, and an operator with the token. `port` is where operators are answered."""

    app: ApiApp
    server: ApiServer
    http: httpx.Client
    port: int
    public_port: int

    def get(self, path: str, **query: Any) -> Any:
        """The data of an answer that is expected."""
        return self._data(self.http.get(path, params=query))

    def post(self, path: str, **body: Any) -> Any:
        """The data of an answer that is expected."""
        return self._data(self.http.post(path, json=body))

    def refusal(self, method: str, path: str, status: int, **request: Any) -> dict[str, Any]:
        """The error of an answer that is expected to be one."""
        response = self.http.request(method, path, **request)
        error: dict[str, Any] = response.json()["error"]
        assert (response.status_code, error["status"]) == (status, status), response.text
        return error

    def _data(self, response: httpx.Response) -> Any:
        assert response.status_code == 200, response.text
        return json.loads(response.content)["data"]


@contextmanager
def running_admin(
    settings: AdminSettings,
    *,
    own_port: bool = False,
    audience: str = "headwater-tests",
    limits: HttpLimits | None = None,
) -> Iterator[AdminEndpoint]:
    """The endpoint over the settings' store, in a thread. With `own_port` operators have a port of their own."""
    from tests.support.fix_api import PlayedHead, jwk  # plugins must not import each other as they load

    sockets = [bind("127.0.0.1", 0)]
    if own_port:
        sockets.append(bind("127.0.0.1", 0))
        settings = replace(settings, port=sockets[1].getsockname()[1])
    public, port = sockets[0].getsockname()[1], sockets[-1].getsockname()[1]
    with closing(open_store(settings.storage).open_reader()) as reader:
        held = KeyRing((parse_key(jwk(SECRET)),))
        app = create_app(
            ApiSettings(held, frozenset({audience}), admin=settings, http=limits or HttpLimits()), reader, PlayedHead()
        )
        with served(app, sockets, {"authorization": f"Token {TOKEN}"}) as (server, _, http):
            document = http.get(OPENAPI).json()
            http.event_hooks = {"response": [partial(is_as_described, document)]}
            yield AdminEndpoint(app, server, http, port, public)


def is_as_described(document: dict[str, Any], response: httpx.Response) -> None:
    """Whether an answer has the form that the description of the routes gives it."""
    path = re.sub(r"(/versions/)[^/]+$", r"\1{id}", response.request.url.path)
    operation = document["paths"].get(path, {}).get(response.request.method.lower())
    if operation is None or response.headers.get("content-type") != "application/json":
        return
    described = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
    answer = json.loads(response.read())
    Draft202012Validator({**described, "components": document["components"]}).validate(answer)


@pytest.fixture
def admin(ruled: RuledStore) -> Iterator[AdminEndpoint]:
    """A running endpoint over `ruled`, which serves a sync config. Its source answers nobody."""
    ruled.serve(SERVED)
    with running_admin(AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))) as endpoint:
        yield endpoint
