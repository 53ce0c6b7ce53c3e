"""Checks the claims of a token whose signature was verified."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from headwater.api.auth.errors import AuthError, TokenExpiredError

TOLERANCE = 60
"""Seconds by which the clocks of issuer and server may differ."""

LONGEST_USER = 1024
"""The most bytes of a user id, which stores use in keys."""

_LATEST = 100_000_000_000
"""The year 5138 in seconds. A larger time must be in milliseconds, in which this is 1973."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The user of a verified token. `user_id` is the claim `sub` as text, `expires_at` is in seconds since 1970."""

    user_id: str
    claims: Mapping[str, object]
    expires_at: float

    def expires_in(self) -> float:
        """Seconds until the token expires. Negative while only TOLERANCE keeps it valid."""
        return self.expires_at - time.time()


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """An issuer whose tokens may come without a claim aud. In place of it, `clients` has for claims such as azp and
    client_id the values that are accepted: each of these claims has to be there."""

    issuer: str
    clients: Mapping[str, frozenset[str]]

    def issued(self, claims: Mapping[str, object]) -> bool:
        """Whether a verified token is from this issuer and for one of these clients."""
        return claims.get("iss") == self.issuer and all(
            isinstance(value := claims.get(name), str) and value in accepted for name, accepted in self.clients.items()
        )


def is_over(user: Principal, now: float) -> bool:
    """Whether the user's token has expired, with TOLERANCE."""
    return user.expires_at <= now - TOLERANCE


def principal_of(
    claims: Mapping[str, object],
    audience: frozenset[str],
    max_lifetime: int,
    now: float,
    issuers: Sequence[TrustedIssuer] = (),
) -> Principal:
    """Check the claims and return their user. A token of one of the `issuers` needs no audience. `max_lifetime` and
    `now` are in seconds. Raises AuthError or a subclass, with the reason."""
    for name in ("sub", "iat", "exp"):
        if claims.get(name) is None:
            raise AuthError(f"the token has no claim {name!r}", fix=_MISSING[name])
    expires = _check_times(claims, max_lifetime, now)
    if claims.get("aud") is not None:
        _check_audience(claims["aud"], audience)
    elif not any(issuer.issued(claims) for issuer in issuers):
        if any(issuer.issuer == claims.get("iss") for issuer in issuers):
            names = sorted({name for issuer in issuers for name in issuer.clients})
            fix = f"compare its {' or '.join(names)} with client_auth.without_audience"
            raise AuthError("the token has no claim 'aud', and is for another client", fix=fix, code="PSYNC_S2105")
        raise AuthError("the token has no claim 'aud'", fix=_MISSING["aud"], code="PSYNC_S2105")
    parameters = claims.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise AuthError("the claim 'parameters' is not an object", fix="sign it as one, or leave it out")
    return Principal(_user_id(claims["sub"]), claims, expires)


_MISSING = {
    "sub": "sign it with the id of the user",
    "iat": "sign it with the time of its issue, in seconds since 1970",
    "exp": "sign it with a time at which it expires, in seconds since 1970",
    "aud": "sign it with one of the audiences in client_auth.audience, or name its issuer in"
    " client_auth.without_audience",
}


def _check_times(claims: Mapping[str, object], max_lifetime: int, now: float) -> float:
    """Check iat, nbf and exp. Returns the time at which the token expires, in seconds since 1970."""
    issued, expires = _time(claims, "iat"), _time(claims, "exp")
    for name in ("iat", "nbf"):
        if claims.get(name) is not None and _time(claims, name) > now + TOLERANCE:
            raise AuthError(
                "the token is not valid yet",
                fix=f"compare the clocks of issuer and server: its {name} is {_time(claims, name) - now:.0f} s ahead",
            )
    if expires <= now - TOLERANCE:
        raise TokenExpiredError("the token has expired", fix=f"fetch a new one: it expired {now - expires:.0f} s ago")
    if expires - issued > max_lifetime:
        raise AuthError(
            f"the token's lifetime is longer than the {max_lifetime} s allowed",
            fix=f"it is {expires - issued:.0f} s; issue it with an earlier exp",
            code="PSYNC_S2104",
        )
    return expires


def _time(claims: Mapping[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise AuthError(f"the claim {name!r} is not a number of seconds", fix="sign it as seconds since 1970")
    if value > _LATEST:
        code = "PSYNC_S2104" if name == "exp" else AuthError.code
        raise AuthError(
            f"the claim {name!r} seems to be in milliseconds", fix="sign it as seconds since 1970", code=code
        )
    return float(value)


def _check_audience(aud: object, audience: frozenset[str]) -> None:
    named = aud if isinstance(aud, list) else [aud]
    if audience.isdisjoint(each for each in named if isinstance(each, str)):
        accepted = ", ".join(sorted(audience)) or "none is configured, in client_auth.audience"
        raise AuthError("the token is for another audience", fix=f"accepted: {accepted}", code="PSYNC_S2105")


def _user_id(sub: object) -> str:
    """The claim sub as text, as stores keep it. Refuses values whose text is ambiguous: no two users share an id."""
    try:
        json.dumps(sub, allow_nan=False)
        text = _as_text(sub)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError):
        reason = "it has a lone surrogate, NaN or infinity, or contains a number beyond 64 bits"
        raise _bad_user("can't be written as text", reason) from None
    if not text:
        raise _bad_user("is empty", "every user needs an id")
    if "\0" in text:
        raise _bad_user("contains a NUL", "no store can keep that in text")
    if size > LONGEST_USER:
        raise _bad_user("is too long", f"it has {size} bytes, and at most {LONGEST_USER} are allowed")
    return text


def _bad_user(problem: str, reason: str) -> AuthError:
    return AuthError(f"the claim 'sub' can't be used as a user id: it {problem}", fix=reason)


def _as_text(sub: object) -> str:
    if isinstance(sub, str):
        return sub
    if isinstance(sub, float) and sub.is_integer():
        sub = int(sub)
    if isinstance(sub, int) and not isinstance(sub, bool):
        return str(sub)  # of any size
    return orjson.dumps(sub).decode()
