"""What the demo adds to the endpoint, on the same port: its people, their tokens, and the page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

import anyio
import psycopg
from psycopg import sql
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from headwater.api.auth.keys import Key
from headwater.api.auth.sign import sign
from headwater.api.errors import ApiError
from headwater.dev.demo_files import DemoFiles
from headwater.source.connect import SourceSettings, connect

TOKEN_SECONDS = 3600
_SHOWN_USERS = 50

_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>The demo app is not built</title>
<h1>The demo app is not built</h1><p>Run <code>make demo</code>, which builds it, and load this page again.</p></html>
"""
_MEDIA_TYPES = {".js": "text/javascript", ".wasm": "application/wasm"}


class UnknownUserError(ApiError):
    """The demo has no such user."""

    code = "HW_8015"
    status: ClassVar[int] = 404


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo's database, the key that signs its tokens, and their audience."""

    source: SourceSettings
    key: Key
    audience: str

    async def users(self, _: Request) -> Response:
        """The demo's users. The page uses the first two."""
        rows = await anyio.to_thread.run_sync(self._users)
        return JSONResponse([{"id": str(user_id), "name": name} for user_id, name in rows])

    async def token(self, request: Request) -> Response:
        """A token for any user, without authentication: the demo runs on the developer's own machine."""
        user = _uuid(request.query_params.get("user", ""))
        if user is None or not await anyio.to_thread.run_sync(self._exists, user):
            raise UnknownUserError("there is no such user", fix="use an id from /demo/users")
        return _signed(str(user), self.key, self.audience, request)

    def _users(self) -> list[tuple[UUID, str]]:
        with self._connect() as conn:
            query = "select id, name from users order by created_at, id limit %s"
            return conn.execute(query, [_SHOWN_USERS]).fetchall()

    def _exists(self, user: UUID) -> bool:
        with self._connect() as conn:
            return conn.execute("select from users where id = %s", [user]).fetchone() is not None

    def _connect(self) -> psycopg.Connection:
        return connect(self.source, application_name="headwater demo")


@dataclass(frozen=True, slots=True)
class OwnTables:
    """Somebody's own database in place of the demo's: the table of its users, what tokens call them, a column that
    tells them apart for a person, and the tables of devices."""

    source: SourceSettings
    key: Key
    audience: str
    users_table: tuple[str, str]
    subject: str
    title: str
    tables: Mapping[str, Mapping[str, str]]

    async def users(self, _: Request) -> Response:
        """The first users, by what tokens call them."""
        rows = await anyio.to_thread.run_sync(self._users)
        return JSONResponse([{"id": user_id, "name": name} for user_id, name in rows])

    async def token(self, request: Request) -> Response:
        """A token for any user, without authentication: this runs on the developer's own machine."""
        user = request.query_params.get("user", "")
        if not user or not await anyio.to_thread.run_sync(self._exists, user):
            raise UnknownUserError("there is no such user", fix="use an id from /demo/users")
        return _signed(user, self.key, self.audience, request)

    async def shown(self, _: Request) -> Response:
        """The tables of devices, with the types of their columns."""
        return JSONResponse({name: dict(columns) for name, columns in self.tables.items()})

    def _users(self) -> list[tuple[str, str]]:
        names = [sql.Identifier(each) for each in (self.subject, self.title)]
        query = sql.SQL("select {0}::text, coalesce({1}::text, {0}::text) from {2} where {0} is not null order by {0}"
                        " limit %s").format(*names, sql.Identifier(*self.users_table))  # fmt: skip
        with connect(self.source, application_name="headwater dev") as conn:
            return conn.execute(query, [_SHOWN_USERS]).fetchall()

    def _exists(self, user: str) -> bool:
        query = sql.SQL("select from {} where {}::text = %s").format(
            sql.Identifier(*self.users_table), sql.Identifier(self.subject)
        )
        with connect(self.source, application_name="headwater dev") as conn:
            return conn.execute(query, [user]).fetchone() is not None


def _signed(user: str, key: Key, audience: str, request: Request) -> Response:
    now = int(time.time())
    token = sign({"sub": user, "aud": audience, "iat": now, "exp": now + TOKEN_SECONDS}, key)
    return JSONResponse({"token": token, "endpoint": str(request.base_url).rstrip("/")})


class Page(StaticFiles):
    """The built demo app. Its file names contain a hash, except the page itself."""

    def __init__(self, files: DemoFiles) -> None:
        super().__init__(directory=files.app, html=True, check_dir=False)
        self._files = files

    async def check_config(self) -> None:
        """Does nothing: a missing app is reported when it is requested."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if not self._files.has_app:
            return Response(_NOT_BUILT, 503, media_type="text/html")
        response = await super().get_response(self._files.page if path in {".", ""} else path, scope)
        suffix = path[path.rfind(".") :]
        if suffix in _MEDIA_TYPES:  # the machine's own table of types may differ
            response.headers["content-type"] = _MEDIA_TYPES[suffix]
        lasting = path.startswith("assets/")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if lasting else "no-cache"
        return response


def demo_routes(demo: Demo | OwnTables, files: DemoFiles) -> list[BaseRoute]:
    """All routes below /demo, and redirects to it."""
    return [
        *([Route("/demo/tables", demo.shown)] if isinstance(demo, OwnTables) else []),
        Route("/", _to_page),
        Route("/demo", _to_page),
        Route("/demo/users", demo.users),
        Route("/demo/token", demo.token),
        Mount("/demo", Page(files)),
    ]


async def _to_page(_: Request) -> Response:
    return RedirectResponse("/demo/")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
