"""Keys that tokens are signed with, and which of them a token may use.

A kind of key is one entry of `ALGORITHMS`; a place that keys come from is one implementation of `KeySource`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jwt

from headwater.api.auth.errors import AuthError
from headwater.errors import HeadwaterError

DAY = 86_400

ALGORITHMS: Mapping[str, frozenset[str]] = {"oct": frozenset({"HS256", "HS384", "HS512"})}
"""What each kind of key (`kty`) may sign with."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)  # either alphabet: Node reads both


class InvalidKeyError(HeadwaterError):
    """A configured key can't be used."""

    code = "PSYNC_S2201"


@dataclass(frozen=True, slots=True)
class Key:
    """A trusted key. Without a `kid` it is tried for every token of its algorithms. `audience` replaces the
    configured one; `max_lifetime` is in seconds."""

    kid: str | None
    algorithms: frozenset[str]
    material: jwt.PyJWK = field(repr=False)
    audience: frozenset[str] | None = None
    max_lifetime: int = DAY


class KeySource(Protocol):
    """Where keys come from: the config, a JWKS address."""

    async def keys(self, kid: str | None) -> Sequence[Key]:
        """Every key trusted now. `kid` is what a token asks for: a source may look for it once more."""


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys from the config."""

    held: tuple[Key, ...]

    async def keys(self, kid: str | None) -> Sequence[Key]:
        return self.held


def parse_key(jwk: Mapping[str, object]) -> Key:
    """A key in JWK form, as the config has it. Raises InvalidKeyError, which never shows the secret."""
    kty, alg, kid = jwk.get("kty"), jwk.get("alg"), jwk.get("kid")
    where = f"key {kid}" if kid is not None else "a key without kid"
    family = ALGORITHMS.get(kty) if isinstance(kty, str) else None
    if family is None:
        raise InvalidKeyError(f"kty {kty!r} is not supported", where, f"use one of {', '.join(sorted(ALGORITHMS))}")
    if not isinstance(alg, str) or alg not in family:
        raise InvalidKeyError(f"alg {alg!r} does not fit kty {kty}", where, f"use one of {', '.join(sorted(family))}")
    if kid is not None and not isinstance(kid, str):
        raise InvalidKeyError("kid is not a string", where, "put it in quotes")
    return Key(kid, frozenset({alg}), _material(jwk, alg, where))


def _material(jwk: Mapping[str, object], alg: str, where: str) -> jwt.PyJWK:
    secret = jwk.get("k")
    if not isinstance(secret, str) or not _BASE64.fullmatch(secret):
        raise InvalidKeyError("the secret `k` can't be read", where, "give it as base64url text")
    url_safe = secret.translate(str.maketrans("+/", "-_")).rstrip("=")
    try:
        return jwt.PyJWK.from_dict({"kty": "oct", "k": url_safe}, alg)
    except (jwt.PyJWTError, ValueError):  # their messages may quote the key
        raise InvalidKeyError("the secret `k` can't be read", where, "give it as base64url text") from None


def candidates(keys: Sequence[Key], kid: str | None, alg: str) -> list[Key]:
    """The keys that a token with this header may have been signed with. Raises AuthError when its kid names a key
    of another algorithm: another key must not be tried then."""
    named = next((key for key in keys if kid is not None and key.kid == kid), None)
    if named is None:
        return [key for key in keys if key.kid is None and alg in key.algorithms]
    if alg not in named.algorithms:
        raise AuthError("the token's kid names a key of another alg", fix=f"{kid!r} is not for {alg}")
    return [named]
