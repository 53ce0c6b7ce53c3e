"""The routes of the studio: its session, and the files of its page."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import anyio
import msgspec
from cachetools import TTLCache
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.errors import ApiError
from headwater.api.http.headers import with_headers
from headwater.api.http.requests import read_body, require_json
from headwater.api.limits import network_of
from headwater.api.studio.sessions import (
    COOKIE,
    REFUSED,
    SESSION_SECONDS,
    Operators,
    Session,
    cookie_of,
    require_own_page,
    session_id,
)
from headwater.api.studio.tokens import LONGEST_NAME
from headwater.telemetry.log_facts import log_extra

PATH: Final = "/studio"

MOST_FAILED, MOST_FAILED_IN_ALL = 10, 200
"""How many sign-ins of an address may fail within FAILED_SECONDS. The next ones are refused unseen. After so many of
all addresses, one of each may: strangers keep nobody out who has the right token."""
FAILED_SECONDS = 60.0

_MOST_BODY = 16 * 1024

log = logging.getLogger(__name__)


class SignInRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An admin token, and what its holder wants to be called, which counts only where the config gives no name."""

    token: Annotated[str, Meta(max_length=4096)]
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""


class TooManySignInsError(ApiError):
    """Too many sign-ins failed of late."""

    code = "HW_6208"
    retry_after = int(FAILED_SECONDS)


class FailedSignIns:
    """Counts wrong tokens by address. Use it in one event loop."""

    def __init__(self) -> None:
        self._failed: TTLCache[str, int] = TTLCache(10_000, FAILED_SECONDS)

    def check(self, address: str) -> None:
        """Raise TooManySignInsError when there were too many."""
        most = MOST_FAILED if sum(self._failed.values()) < MOST_FAILED_IN_ALL else 1
        if self._failed.get(address, 0) >= most:
            raise TooManySignInsError("too many sign-ins failed", fix="wait a minute")

    def note(self, address: str) -> None:
        self._failed[address] = self._failed.get(address, 0) + 1


EndSession = Callable[[str], Awaitable[None]]
"""Ends the session with this id in all processes. Raises what the store raises."""


class SessionRoute:
    """Signs in and out, and says who is signed in."""

    def __init__(self, operators: Operators, end: EndSession) -> None:
        self._operators = operators
        self._end = end
        self._failed = FailedSignIns()

    def route(self) -> Route:
        return Route("/session", self._answer, methods=["GET", "POST", "DELETE"])

    async def _answer(self, request: Request) -> Response:
        require_own_page(request.headers)
        match request.method:
            case "POST":
                return await self._sign_in(request)
            case "DELETE":
                return await self._sign_out(request)
            case _:
                session = self._operators.session(cookie_of(request.headers))
                if session is None:
                    raise _refused()
                return _json(session)

    async def _sign_in(self, request: Request) -> Response:
        address = network_of(request.client.host if request.client else "")
        self._failed.check(address)
        require_json(request)
        given = _sign_in_request(await read_body(request, _MOST_BODY))
        self._failed.check(address)  # of requests that were sent at once, too
        token = self._operators.find(given.token)
        if token is None:
            self._failed.note(address)
            raise _refused()
        if not token.name and self._operators.has_name(given.name):
            raise _invalid("the name is that of another token", "call yourself otherwise, or sign in with that token")
        cookie = self._operators.sign_in(token, given.name)
        session = self._operators.session(cookie)
        assert session is not None
        facts = {"operator": session.name, "role": session.role.value, "address": address}
        log.info("an operator signed in to the studio", extra=log_extra(facts))
        response = _json(session)
        set_session(request, response, cookie)
        return response

    async def _sign_out(self, request: Request) -> Response:
        cookie = cookie_of(request.headers)
        if self._operators.session(cookie) is not None:
            self._operators.authorize(request.scope)
            await self._end(session_id(cookie))
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=_by_tls(request))
        return response


def set_session(request: Request, response: Response, cookie: str) -> None:
    """Give the browser a session."""
    response.set_cookie(
        COOKIE, cookie, SESSION_SECONDS, path="/", httponly=True, samesite="strict", secure=_by_tls(request)
    )


def _by_tls(request: Request) -> bool:
    """Whether the browser speaks TLS, maybe with a proxy that we do not trust to say so."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _sign_in_request(body: bytes) -> SignInRequest:
    try:
        request = msgspec.json.decode(body, type=SignInRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the request has the wrong form: {error}", "send a token") from None
    if not request.name.isprintable():
        raise _invalid("the name has characters that can't be printed", "send another one")
    return request


def _invalid(what: str, fix: str) -> ApiError:
    return ApiError(what, fix=fix, code="HW_6201")


def _refused() -> ApiError:
    return ApiError("Authorization failed", fix="sign in with one of api.tokens", code=REFUSED)


def _json(session: Session) -> Response:
    return Response(msgspec.json.encode(session), media_type="application/json")


_NONCE = "HEADWATER_NONCE"
"""What stands in the built page where the nonce of its style sheets belongs."""

_NOT_BUILT = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>The studio is not built</title>
<h1>The studio is not built</h1><p>Run <code>make demo</code>, which builds it, and load this page again. The admin API
below <code>/api</code> works without it.</p><!-- {_NONCE} --></html>
"""

_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def find_page() -> Path:
    """The directory of the built web app: in a clone, or beside it in an installed wheel. It may be missing."""
    package = Path(__file__).resolve().parents[2]
    clone = package.parents[1] / "clients" / "web"
    return clone / "dist" if clone.is_dir() else package / "dev" / "app"


class _Assets(StaticFiles):
    """The files of the built page, whose names contain a hash."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, check_dir=False)

    async def check_config(self) -> None:
        """Does nothing: a page that was not built says so itself."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        suffix = path[path.rfind(".") :]
        if suffix in _MEDIA_TYPES:  # the machine's own table of types may differ
            response.headers["content-type"] = _MEDIA_TYPES[suffix]
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


class StudioPage(Mount):
    """The page and its session. Neither the page nor its files have data, so that anybody may load them."""

    def __init__(self, operators: Operators, end: EndSession, page: Path) -> None:
        self._page = page
        self._router = Router(
            routes=[
                SessionRoute(operators, end).route(),
                Route("/", self._show),
                Mount("/assets", _Assets(self._page / "assets")),
            ],
            redirect_slashes=False,
        )
        super().__init__(PATH, app=self._answer)

    @property
    def routes(self) -> list[BaseRoute]:
        return self._router.routes

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        await self._router(scope, receive, with_headers(send, _HEADERS))

    async def _show(self, _: Request) -> Response:
        text = await anyio.to_thread.run_sync(self._read)
        nonce = secrets.token_urlsafe(16)
        return Response(
            (text or _NOT_BUILT).replace(_NONCE, nonce),
            200 if text else 503,
            {"content-security-policy": _PAGE_POLICY.format(nonce=nonce)},
            media_type="text/html",
        )

    def _read(self) -> str:
        try:
            return (self._page / "studio.html").read_text("utf-8")
        except OSError:
            return ""


def studio_routes(operators: Operators, end: EndSession, page: Path | None = None) -> Sequence[BaseRoute]:
    """The routes of the studio; none without a token to sign in with. `page` is the directory of the built web app."""
    if not operators.any:
        return ()
    return Route(PATH, _to_page), StudioPage(operators, end, find_page() if page is None else page)


async def _to_page(_: Request) -> Response:
    return RedirectResponse("studio/")  # relative, since a proxy may have put us below a path
