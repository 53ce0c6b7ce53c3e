"""What the demo adds to the endpoint, on the same port: its people, their tokens, the page, and what that shows beside
the lists: what happened, and which rules let a row through.

What happened is answered about the user of the token alone, so that the page learns no more than its two people may."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import orjson
from psycopg import sql
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from headwater.api.admin.rules import ClientRequest, ExplainHandler, ExplainRowRequest
from headwater.api.auth.keys import Key, sign
from headwater.api.auth.verify import Verifier
from headwater.api.errors import ApiError
from headwater.api.limits import address_of
from headwater.api.studio.routes import set_session
from headwater.api.studio.sessions import Operators
from headwater.api.studio.tokens import AdminToken
from headwater.dev import DemoFiles
from headwater.dev.trace import RuleLines, RuleText, Tracer
from headwater.dev.workspace import StudioLink
from headwater.source.connect import SourceSettings, connect

TOKEN_SECONDS = 3600
_SHOWN_USERS = 50

_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>The demo app is not built</title>
<h1>The demo app is not built</h1><p>Run <code>make demo</code>, which builds it, and load this page again.</p></html>
"""
_MEDIA_TYPES = {".js": "text/javascript", ".wasm": "application/wasm"}


@dataclass(frozen=True, slots=True)
class Demo:
    """Whose rows are shown, and how to log in as one of them: the database, the key that signs tokens, and their
    audience; the table of users, what tokens call a user, a column that tells users apart for a person, and what they
    are sorted by. `tables` are those of devices, with the types of their columns, if it is somebody's own database."""

    source: SourceSettings
    key: Key
    audience: str
    users_table: tuple[str, str] = ("public", "users")
    subject: str = "id"
    title: str = "name"
    order: tuple[str, ...] = ("created_at", "id")
    tables: Mapping[str, Mapping[str, str]] | None = None

    async def users(self, request: Request) -> Response:
        """The first users, by what tokens call them. The page uses the first two."""
        require_near(request.headers)
        rows = await anyio.to_thread.run_sync(self._users)
        return JSONResponse([{"id": user_id, "name": name} for user_id, name in rows])

    async def token(self, request: Request) -> Response:
        """A token for any user, without authentication: this runs on the developer's own machine."""
        require_near(request.headers)
        user = request.query_params.get("user", "")
        if not user or "\0" in user or not await anyio.to_thread.run_sync(self._exists, user):
            raise ApiError("there is no such user", fix="use an id from /demo/users", code="HW_8015")
        now = int(time.time())
        token = sign({"sub": user, "aud": self.audience, "iat": now, "exp": now + TOKEN_SECONDS}, self.key)
        return JSONResponse({"token": token, "endpoint": str(request.base_url).rstrip("/")})

    async def shown(self, request: Request) -> Response:
        """The tables of devices, with the types of their columns."""
        require_near(request.headers)
        return JSONResponse({name: dict(columns) for name, columns in (self.tables or {}).items()})

    def _users(self) -> list[tuple[str, str]]:
        names = [sql.Identifier(each) for each in (self.subject, self.title)]
        order = sql.SQL(", ").join(map(sql.Identifier, self.order))
        query = sql.SQL("select {0}::text, coalesce({1}::text, {0}::text) from {2} where {0} is not null order by {3}"
                        " limit %s").format(*names, sql.Identifier(*self.users_table), order)  # fmt: skip
        with connect(self.source, application_name="headwater dev") as conn:
            return conn.execute(query, [_SHOWN_USERS]).fetchall()

    def _exists(self, user: str) -> bool:
        query = sql.SQL("select from {} where {}::text = %s").format(
            sql.Identifier(*self.users_table), sql.Identifier(self.subject)
        )
        with connect(self.source, application_name="headwater dev") as conn:
            return conn.execute(query, [user]).fetchone() is not None


def require_near(headers: Headers) -> None:
    """Raise HW_8016 for a request of a web page from elsewhere. Browsers let every page ask a server on their machine,
    and here nobody needs a token. Pages of this machine, and of the host by which we are called, may ask. A page whose
    name was made to lead here calls us by that name, which is none of a machine nearby."""
    host, origin = _host(f"//{headers.get('host', '')}"), headers.get("origin")
    if not _is_near(host) or (origin is not None and _host(origin) not in {host, "localhost", "127.0.0.1", "::1"}):
        fix = "open the demo by the address that the command printed, or ask from your own server"
        raise ApiError(
            "a web page from elsewhere asks, or one by another name of this machine", fix=fix, code="HW_8016"
        )


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_near(host: str) -> bool:
    """Whether a host is an IP address, or has a name that nobody can register."""
    name = host.rstrip(".")
    return address_of(host) is not None or "." not in name or name.endswith((".localhost", ".local", ".internal"))


class DemoPage(StaticFiles):
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


def demo_routes(demo: Demo, files: DemoFiles) -> list[BaseRoute]:
    """All routes below /demo, and redirects to it."""
    return [
        *([] if demo.tables is None else [Route("/demo/tables", demo.shown)]),
        Route("/", _to_page),
        Route("/demo", _to_page),
        Route("/demo/users", demo.users),
        Route("/demo/token", demo.token),
        Mount("/demo", DemoPage(files)),
    ]


async def _to_page(_: Request) -> Response:
    return RedirectResponse("/demo/")


@dataclass(frozen=True, slots=True)
class StudioDoor:
    """Signs in to the studio who follows the link that the command printed."""

    link: StudioLink
    tokens: tuple[AdminToken, ...]

    def routes(self) -> list[BaseRoute]:
        route = Route("/demo/studio", self.enter)
        route.methods = {"GET"}  # a HEAD, as of what shows a link before it is opened, must not use it up
        return [route]

    async def enter(self, request: Request) -> Response:
        if not self.link.use(request.query_params.get("key", "")):
            fix = "start `headwater dev` again, or sign in with the token in its headwater.yaml"
            raise ApiError("the link to the studio was used already, or is wrong", fix=fix, code="HW_8016")
        response = RedirectResponse("../studio/", 303, {"cache-control": "no-store", "referrer-policy": "no-referrer"})
        set_session(request, response, Operators(self.tokens).sign_in(self.tokens[0]))
        return response


_LONGEST = 200
_MOST_OP_ID = 2**53


@dataclass(frozen=True, slots=True)
class RowPath:
    """A bucket that brings a row, the stream that gives it, and the lines of the sync config that do."""

    bucket: str
    stream: str
    op_id: int
    lines: RuleLines


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Whether a person has a row. `because` says why in a sentence."""

    included: bool
    because: str
    ways: tuple[RowPath, ...]


@dataclass(frozen=True, slots=True)
class Backstage:
    """Answers the page's questions."""

    verifier: Verifier
    tracer: Tracer
    handler: ExplainHandler
    rules: RuleText
    rules_name: str
    session: str

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/demo/about", self.about),
            Route("/demo/trace", self.trace),
            Route("/demo/explain", self.explain),
        ]

    async def about(self, request: Request) -> Response:
        """The rules, and where a person writes SQL of his own."""
        await self._user(request)
        return _json({"rules": self.rules.text, "rules_name": self.rules_name, "database": self.session})

    async def trace(self, request: Request) -> Response:
        """The commits after the op `after` that changed what the user sees; without it, only where things stand."""
        user, after = await self._user(request), _op_id(request.query_params.get("after"))
        return await _answer(lambda: self.tracer.trace(user, after))

    async def explain(self, request: Request) -> Response:
        """Whether the user has the row `id` of `table`, and by which lines of the rules."""
        user = await self._user(request)
        row = ExplainRowRequest(ClientRequest(user), _text(request, "table"), _text(request, "id"))
        return await _answer(lambda: self._verdict(row))

    def _verdict(self, request: ExplainRowRequest) -> RowVerdict:
        explained = self.handler.row(request)
        ways = [
            RowPath(place.bucket, reason.stream, place.op_id, self.rules.of_bucket(reason.stream, place.bucket))
            for place in explained.places
            for reason in place.reasons[:1]
        ]
        return RowVerdict(explained.included, explained.because, tuple(ways))

    async def _user(self, request: Request) -> str:
        principal = await self.verifier.authorize(request.headers.get("authorization"))
        return principal.user_id


def _op_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) < _MOST_OP_ID):
        raise ApiError("`after` is not an op id", fix="use `checkpoint` of an earlier answer", code="HW_8016")
    return int(text)


def _text(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if not 0 < len(text) <= _LONGEST or "\0" in text:
        raise ApiError(f"`{name}` is missing, or too long", fix="give the table and the id of a row", code="HW_8016")
    return text


async def _answer(question: Callable[[], object]) -> Response:
    return _json(await anyio.to_thread.run_sync(question))


def _json(answer: object) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json", headers={"cache-control": "no-store"})
