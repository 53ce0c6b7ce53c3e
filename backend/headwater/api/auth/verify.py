"""From an Authorization header to the user it proves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import jwt
import orjson

from headwater.api.auth.errors import (
    AuthError,
    TokenAudienceError,
    TokenExpiredError,
    TokenLifetimeError,
    TokenMissingError,
)
from headwater.api.auth.keys import ALGORITHMS, Key, KeySource, candidates

TOLERANCE = 60
"""Seconds that clocks may differ."""

_HEADER = re.compile(r"(?:Token|Bearer) (\S+)")
_REQUIRED = ("sub", "iat", "exp", "aud")
_SUPPORTED = frozenset[str]().union(*ALGORITHMS.values())


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified user. `user_id` is the claim `sub` as text, `expires_at` in seconds since 1970."""

    user_id: str
    claims: Mapping[str, object]
    expires_at: float

    def expires_in(self) -> float:
        """Seconds left; negative while only the clock tolerance keeps the token alive."""
        return self.expires_at - time.time()


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks tokens against keys and the accepted audience. An empty audience refuses every token whose key does
    not bring its own."""

    keys: KeySource
    audience: frozenset[str]

    async def authorize(self, header: str | None) -> Principal:
        """The user behind an Authorization header. Raises AuthError or a subclass, with the reason."""
        match = _HEADER.fullmatch(header or "")
        if match is None:
            raise TokenMissingError(
                "the Authorization header has no token" if header else "there is no Authorization header",
                fix="send `Authorization: Token <jwt>`",
            )
        return await self.verify(match[1])

    async def verify(self, token: str) -> Principal:
        """The user behind a token. Raises AuthError or a subclass, with the reason."""
        kid, alg = _header(token)
        keys = candidates(await self.keys.keys(kid), kid, alg)
        if not keys:
            asked = f"kid {kid!r}" if kid is not None else "no kid"
            raise AuthError("no configured key fits the token", fix=f"check client_auth: it has {asked} and alg {alg}")
        for key in keys:
            claims = self._claims(token, key, alg)
            if claims is not None:
                return _principal(claims, key)
        raise AuthError("the token's signature is wrong", fix="check that the signing secret is the configured one")

    def _claims(self, token: str, key: Key, alg: str) -> dict[str, object] | None:
        """The checked payload, or None when this key did not sign the token."""
        audience = self.audience if key.audience is None else key.audience
        try:
            return _decode(token, key, alg, audience)
        except jwt.InvalidSignatureError:
            return None
        except jwt.ExpiredSignatureError:
            raise TokenExpiredError("the token has expired", fix="fetch a new one") from None
        except jwt.MissingRequiredClaimError as error:
            kind = TokenAudienceError if error.claim == "aud" else AuthError
            raise kind(f"the token has no claim {error.claim!r}") from None
        except jwt.InvalidAudienceError:
            accepted = ", ".join(sorted(audience)) or "none is configured"
            raise TokenAudienceError("the token is for another audience", fix=f"accepted: {accepted}") from None
        except jwt.ImmatureSignatureError:
            raise AuthError("the token is not valid yet", fix="compare the clocks of issuer and server") from None
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError):
            raise AuthError("the token is malformed") from None


def _header(token: str) -> tuple[str | None, str]:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthError("the token is not a JWT") from None
    kid, alg = header.get("kid"), header.get("alg")
    if not isinstance(alg, str) or alg not in _SUPPORTED:
        use = f"it is {alg!r}; use one of {', '.join(sorted(_SUPPORTED))}"
        raise AuthError("the token's alg is not accepted", fix=use)
    return kid, alg


def _decode(token: str, key: Key, alg: str, audience: Collection[str]) -> dict[str, object]:
    claims: dict[str, object] = jwt.decode(
        token,
        key.material,
        algorithms=[alg],
        audience=list(audience),
        leeway=TOLERANCE,
        # `sub` may be any JSON value here
        options={"require": list(_REQUIRED), "verify_sub": False, "verify_iss": False, "verify_jti": False},
    )
    return claims


def _principal(claims: Mapping[str, object], key: Key) -> Principal:
    issued, expires = _time(claims, "iat"), _time(claims, "exp")
    if expires - issued > key.max_lifetime:
        raise TokenLifetimeError(
            f"the token lives longer than the {key.max_lifetime} s allowed",
            fix=f"it lives {expires - issued:.0f} s; issue it with an earlier exp",
        )
    parameters = claims.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise AuthError("the claim 'parameters' is not an object")
    return Principal(_user_id(claims["sub"]), claims, expires)


def _time(claims: Mapping[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthError(f"the claim {name!r} is not a number of seconds")
    return float(value)


def _user_id(sub: object) -> str:
    """Stores keep it as text: what has no text of its own must not become another user's."""
    try:
        json.dumps(sub, allow_nan=False)
        text = _as_text(sub)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        text = "\0"
    if "\0" in text:
        raise AuthError("the claim 'sub' names no user that can be stored")
    return text


def _as_text(sub: object) -> str:
    if isinstance(sub, str):
        return sub
    if isinstance(sub, float) and sub.is_integer():
        sub = int(sub)
    if isinstance(sub, int) and not isinstance(sub, bool):
        return str(sub)  # of any size
    return orjson.dumps(sub).decode()
