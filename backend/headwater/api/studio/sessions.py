"""Who an operator is: by an admin token, or by the session that the studio signs in with one.

A session is a signed cookie, and no process keeps anything of it until it is signed out. Its key is derived from the
token that signed in, so every process of the endpoint knows it, and it ends when the token leaves the config or gets
another role."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from headwater.api.auth.verify import token_of
from headwater.api.errors import ApiError
from headwater.api.studio.tokens import AdminToken, Operator, Role

REFUSED: Final = "PSYNC_S2101"
COOKIE: Final = "headwater_studio"
CSRF_HEADER: Final = "x-headwater-csrf"
SESSION_SECONDS: Final = 12 * 3600

READING: Final = frozenset({"GET", "HEAD"})
"""The methods that change nothing."""

_LONGEST_COOKIE = 2048
_DOMAIN = b"headwater studio session"


class ReadOnlyError(ApiError):
    """The operator's role is `view`, and the request may change something."""

    code = "HW_6206"


class ForeignRequestError(ApiError):
    """A request by a session does not come from the studio's own page, as far as its headers show."""

    code = "HW_6207"


class Session(Struct, frozen=True):
    """A session, as its page sees it. `expires` is in seconds since 1970. Requests that may change something carry
    `csrf` in a header."""

    role: Role
    name: str
    expires: float
    csrf: str


class _Claims(Struct, frozen=True):
    """What the cookie says."""

    role: Role
    name: str
    expires: float


class Operators:
    """Recognizes operators. An empty token is none. `ended` says by the id of a session whether it was signed out."""

    def __init__(
        self,
        tokens: Sequence[AdminToken],
        now: Callable[[], float] = time.time,
        ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._tokens = tuple((_digest(token.text), token) for token in tokens if token.text.strip())
        self._now = now
        self._ended = ended

    @property
    def any(self) -> bool:
        """Whether there is a token to sign in with."""
        return bool(self._tokens)

    def find(self, given: str) -> AdminToken | None:
        """The token with this text. Takes the same time for each."""
        digest, found = _digest(given), None
        for known, token in self._tokens:
            if hmac.compare_digest(digest, known):
                found = token
        return found if given else None

    def has_name(self, name: str) -> bool:
        """Whether the config gives this name to a token, upper case or lower."""
        return name.strip().casefold() in {token.name.casefold() for _, token in self._tokens if token.name}

    def sign_in(self, token: AdminToken, name: str = "") -> str:
        """The cookie of a new session. The token's own name comes before the one that the operator gives."""
        claims = _Claims(token.role, token.name or name, self._now() + SESSION_SECONDS)
        payload = urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=")
        return (payload + b"." + _sign(token, b"cookie", payload)).decode()

    def session(self, cookie: str) -> Session | None:
        """The session of a cookie, unless it was forged, has expired, was signed out, or its token is not in the config
        any more. Raises HW_6031 before it is known who signed out."""
        if len(cookie) > _LONGEST_COOKIE or not cookie.isascii():
            return None
        payload, _, signature = cookie.encode().partition(b".")
        for _, token in self._tokens:
            if hmac.compare_digest(signature, _sign(token, b"cookie", payload)):
                claims = msgspec.json.decode(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)), type=_Claims)
                valid = claims.role is token.role and self._now() < claims.expires
                if valid and not self._ended(session_id(cookie)):
                    csrf = _sign(token, b"csrf", payload).decode()
                    return Session(claims.role, claims.name, claims.expires, csrf)
        return None

    def authorize(self, scope: Scope) -> Operator:
        """Who sent a request. Raises PSYNC_S2101 for a stranger, and ForeignRequestError."""
        headers = Headers(scope=scope)
        if "authorization" in headers:
            token = self.find(token_of(headers["authorization"]) or "")
            if token is not None:
                return Operator(token.name, token.role)
        else:
            cookie = cookie_of(headers)
            session = self.session(cookie)
            if session is not None:
                require_own_page(headers)
                if scope["method"] not in READING:
                    _require_csrf(headers, session)
                return Operator(session.name, session.role, session.expires, lambda: self.session(cookie) is None)
        fix = "send one of api.tokens as: Authorization: Token …"
        raise ApiError("Authorization failed", fix=fix, code=REFUSED)  # not which: missing or wrong


def cookie_of(headers: Headers) -> str:
    """The cookie of a request, whatever page sent it; empty without one."""
    return cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE, "")


def session_id(cookie: str) -> str:
    """The id by which a session is signed out. It signs nobody in."""
    return hashlib.sha256(cookie.encode()).hexdigest()


def require_own_page(headers: Headers) -> None:
    """Raise ForeignRequestError if a browser says that another page sent the request. Schemes are not compared: behind
    a proxy with TLS, ours is http."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        fix = "open the studio at the address that it is served at; a proxy has to pass on the header Host"
        raise ForeignRequestError("the header Origin names another page", fix=fix)
    if site not in {None, "same-origin", "none"}:
        raise ForeignRequestError("another page sent the request", fix="open the studio itself")


def _require_csrf(headers: Headers, session: Session) -> None:
    given = headers.get(CSRF_HEADER, "").encode()
    if not hmac.compare_digest(given, session.csrf.encode()):
        fix = "send `csrf` of GET /studio/session as X-Headwater-CSRF"
        raise ForeignRequestError("the request has no valid X-Headwater-CSRF", fix=fix)


def _sign(token: AdminToken, purpose: bytes, payload: bytes) -> bytes:
    key = hmac.digest(token.text.encode("utf-8", "surrogatepass"), _DOMAIN, hashlib.sha256)
    return urlsafe_b64encode(hmac.digest(key, purpose + b"\0" + payload, hashlib.sha256)).rstrip(b"=")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
