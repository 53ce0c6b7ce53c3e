"""Verifies the token of an Authorization header, and remembers verified tokens."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jwt
from cachetools import LRUCache

from headwater.api.auth.claims import Principal, TrustedIssuer, is_over, principal_of
from headwater.api.auth.errors import AuthError, TokenExpiredError
from headwater.api.auth.key_ring import KeyRing, again
from headwater.api.auth.keys import HMAC, SIGNATURES, Key, candidates, decoded
from headwater.api.auth.revocations import Revocations

_AS_TEXT = (
    "it is signed with the base64 text of the secret, not with the bytes that the text decodes to: have the issuer"
    " decode it, or configure that text, itself encoded as base64url"
)
_AS_BYTES = (
    "the configured secret is base64 text, and the token is signed with the bytes that it decodes to: have the issuer"
    " sign with the text, or configure the decoded secret"
)
_TRIMMED = "the configured secret begins or ends with white space, and the issuer's does not: remove it"
_UNTRIMMED = "the issuer's secret ends with a line break, and the configured one does not: remove it there"


def signed_otherwise(tried: Sequence[Key], alg: str, message: bytes, signature: bytes) -> str | None:
    """How the issuer's secret differs from the configured one, for the client. None when no known mistake fits."""
    if alg not in HMAC:
        return None
    for key in tried:
        for secret, mistake in _variants(key):
            if secret and SIGNATURES[alg].verify(message, secret, signature):
                return mistake
    return None


def _variants(key: Key) -> Iterator[tuple[bytes, str]]:
    if not isinstance(key.material, bytes):
        return
    if key.written is not None:
        for text in (key.written, key.written.rstrip("=")):
            yield text.encode(), _AS_TEXT
    trimmed = key.material.strip()
    text = trimmed.decode("ascii", "replace")
    yield decoded(text) or b"", _AS_BYTES
    yield trimmed, _TRIMMED
    yield key.material + b"\n", _UNTRIMMED


CAPACITY = 16 * 1024 * 1024
"""About how many bytes all remembered tokens take: some 8,000 of usual size."""

LONGEST_KEPT = 8192
"""Longer tokens are verified each time."""

_ENTRY_BYTES = 800  # besides the claims


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Key
    user: Principal
    size: int


class RememberedTokens:
    """The users of verified tokens, by a hash of the token: tokens themselves are not kept. The least recently used go
    first. Not thread-safe: use it in one event loop."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._held: LRUCache[bytes, _Entry] = LRUCache(capacity, lambda entry: entry.size)

    def user_of(self, token: str, trusted: Sequence[Key], now: float) -> Principal | None:
        """The user of a token that was verified before, while it has not expired and the key that signed it is still
        among the trusted ones. The caller checks revocations."""
        entry = self._held.get(name := _name(token)) if len(token) <= LONGEST_KEPT else None
        if entry is None:
            return None
        if is_over(entry.user, now) or entry.key not in trusted:  # an equal one: keys are fetched again and again
            del self._held[name]
            return None
        return entry.user

    def keep(self, token: str, key: Key, user: Principal) -> None:
        entry = _Entry(key, user, _ENTRY_BYTES + _size(user.claims))
        if len(token) <= LONGEST_KEPT and entry.size <= self._held.maxsize:
            self._held[_name(token)] = entry


def _size(claims: Mapping[str, object]) -> int:
    """The bytes that claims take. Those of nested lists are many times the bytes of their token."""
    size = 0
    left: list[object] = [claims]
    while left:
        each = left.pop()
        size += sys.getsizeof(each)
        if isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            left += each
    return size


def _name(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


__all__ = ["Principal", "Verifier", "token_of"]

LONGEST = 65_536
"""The most characters of a token."""

_SCHEMES = frozenset({"token", "bearer"})
_JWS = jwt.PyJWS()


@dataclass(frozen=True, slots=True)
class _Token:
    """A decoded token. Nothing of it is verified."""

    kid: str | None
    alg: str
    message: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies tokens with the keys, the accepted audience and the revocations. With an empty audience, only tokens of
    keys with an audience of their own are accepted, and those of `issuers`, which may come without one. Verified tokens
    are remembered while their key is trusted; revocations are checked at every use."""

    keys: KeyRing
    audience: frozenset[str]
    revocations: Revocations = field(default_factory=Revocations)
    remembered: RememberedTokens = field(default_factory=RememberedTokens)
    issuers: tuple[TrustedIssuer, ...] = ()

    async def authorize(self, header: str | None) -> Principal:
        """Verify the token in an Authorization header. Raises what `verify` raises, with the reason."""
        token = token_of(header)
        if token is None or token.split() != [token]:
            raise AuthError(
                "the Authorization header has no token" if header else "there is no Authorization header",
                fix="send `Authorization: Token <jwt>`",
                code="PSYNC_S2106",
            )
        return await self.verify(token)

    async def verify(self, token: str) -> Principal:
        """Verify a token and return its user. Waits for a fetch of keys only when no known key signed it. Raises
        AuthError or a subclass, or JwksError when the key may be one that can't be fetched now."""
        user = self.remembered.user_of(token, self.keys.known(), time.time())
        if user is None:
            user = await self._verified(token)
        self.revocations.check(user)
        return user

    def recheck(self, user: Principal) -> None:
        """Raise TokenExpiredError or TokenRevokedError if the token of a user whom `verify` returned is no longer
        valid. Whatever goes on for some time for one token calls this before each step."""
        if is_over(user, time.time()):
            raise TokenExpiredError("the token has expired", fix="fetch a new one")
        self.revocations.check(user)

    async def _verified(self, token: str) -> Principal:
        read = _read(token)
        key = _signer(read, self.keys.known())
        # a fetch can't bring a shared secret: those are never published
        if key is None and read.alg not in HMAC and await self.keys.look_again():
            key = _signer(read, self.keys.known())
            if key is None and (unfetched := self.keys.unfetched()):
                raise again(unfetched[0].error)
        if key is None:
            raise _unknown(read, self.keys.known())
        audience = self.audience if key.audience is None else key.audience
        issuers = self.issuers if key.audience is None else ()
        user = principal_of(_claims(read), audience, key.max_lifetime, time.time(), issuers)
        self.remembered.keep(token, key, user)
        return user


def token_of(header: str | None) -> str | None:
    """What follows the scheme, Token or Bearer in any case, and its blanks (RFC 9110). None when there is nothing."""
    match (header or "").split(maxsplit=1):
        case [scheme, token] if scheme.lower() in _SCHEMES:
            return token.rstrip()
        case _:
            return None


def _read(token: str) -> _Token:
    if len(token) > LONGEST:
        raise AuthError(
            "the token is too long", fix=f"it has {len(token)} characters, and at most {LONGEST} are allowed"
        )
    try:
        parts = _JWS.decode_complete(token, options={"verify_signature": False})
        message = token.rpartition(".")[0].encode()
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthError("the token is not a JWT") from None
    kid, alg = parts["header"].get("kid"), parts["header"].get("alg")
    if not isinstance(alg, str) or alg not in SIGNATURES:
        use = f"it is {alg!r}; use one of {', '.join(sorted(SIGNATURES))}"
        raise AuthError("the token's alg is not accepted", fix=use)
    return _Token(kid, alg, message, parts["payload"], parts["signature"])


def _signer(token: _Token, keys: Sequence[Key]) -> Key | None:
    """The key that signed the token; None when it may be an unknown key. Raises AuthError when the token's kid names a
    known key that did not sign it."""
    tried = candidates(keys, token.kid, token.alg)
    signer = next((key for key in tried if key.signed(token.alg, token.message, token.signature)), None)
    if signer is None and token.kid is not None and any(key.kid is not None for key in tried):
        raise _badly_signed(token, tried)
    return signer


def _unknown(token: _Token, keys: Sequence[Key]) -> AuthError:
    tried = candidates(keys, token.kid, token.alg)
    if tried:
        return _badly_signed(token, tried)
    if token.kid is None and (several := sum(token.alg in key.algorithms for key in keys)) > 1:
        fix = f"sign it with a kid in its header: {several} keys are of alg {token.alg}"
        return AuthError("no configured key fits the token", fix=fix)
    asked = f"kid {token.kid!r}" if token.kid is not None else "no kid"
    return AuthError("no configured key fits the token", fix=f"check client_auth: it has {asked} and alg {token.alg}")


def _badly_signed(token: _Token, tried: Sequence[Key]) -> AuthError:
    mistake = signed_otherwise(tried, token.alg, token.message, token.signature)
    fix = mistake or "check that the key it is signed with is the configured one"
    return AuthError("the token's signature is wrong", fix=fix)


def _claims(token: _Token) -> dict[str, object]:
    try:
        claims = json.loads(token.payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise AuthError("the token's payload is not a JSON object")
    return claims
