"""The keys that tokens are signed with, and which of them may verify a token.

Each place that keys come from implements `KeySource`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headwater.api.auth.errors import AuthError, JwksError
from headwater.api.auth.material import SIGNATURES, InvalidKeyError, Material, read_material

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Key:
    """A trusted key. Without a `kid`, it is tried for every token of its algorithms. `audience` replaces the
    configured one; `max_lifetime` of tokens is in seconds. `written` is a secret as in the config, before decoding."""

    kid: str | None
    algorithms: frozenset[str]
    material: Material = field(repr=False)
    audience: frozenset[str] | None = None
    max_lifetime: int = DAY
    written: str | None = field(default=None, repr=False)

    def signed(self, alg: str, message: bytes, signature: bytes) -> bool:
        """Whether this key made the signature, with one of its algorithms."""
        # `material` has the type that these algorithms expect, so a public key is never used as a shared secret
        return alg in self.algorithms and bool(SIGNATURES[alg].verify(message, self.material, signature))


@dataclass(frozen=True, slots=True)
class KeyAddress:
    """The URL of a JWKS. `audience` and `max_lifetime` apply to tokens that its keys signed; see `Key`."""

    url: str
    audience: frozenset[str] | None = None
    max_lifetime: int = DAY

    @property
    def shown(self) -> str:
        """The URL for messages, without its query, which may be secret."""
        return self.url.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Unfetched:
    """An address whose keys can't be fetched now: why, and since when, in seconds since 1970."""

    address: str
    error: JwksError
    since: float


class KeySource(Protocol):
    """A place that keys come from: the config, or an address. Not thread-safe: use it in one event loop."""

    def known(self) -> Sequence[Key]:
        """All keys that are trusted now. Does not wait."""

    async def look_again(self) -> bool:
        """Look for new keys, because no known key signed a token. Returns whether there may be new ones. Raises
        JwksError."""

    def unfetched(self) -> Sequence[Unfetched]:
        """The addresses whose keys can't be fetched now. May be called in any thread."""

    def start(self) -> None:
        """Start to refresh the keys in the background."""

    async def close(self) -> None:
        """Stop refreshing."""


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys from the config."""

    held: tuple[Key, ...]

    def known(self) -> Sequence[Key]:
        return self.held

    async def look_again(self) -> bool:
        return False

    def unfetched(self) -> Sequence[Unfetched]:
        return ()

    def start(self) -> None:
        """Do nothing: these keys never change."""

    async def close(self) -> None:
        """Do nothing."""


def parse_key(jwk: Mapping[str, object]) -> Key:
    """Read a key in JWK form. Raises InvalidKeyError, whose message never contains the secret."""
    kid = jwk.get("kid")
    where = f"key {kid}" if kid is not None else "a key without kid"
    algorithms, material = read_material(jwk, where)
    if kid is not None and not isinstance(kid, str):
        raise InvalidKeyError("kid is not a string", where, "put it in quotes")
    return Key(kid, algorithms, material, written=str(jwk["k"]) if isinstance(material, bytes) else None)


def checks_signatures(jwk: Mapping[str, object]) -> bool:
    """Whether `use` and `key_ops` of a JWK allow checking signatures."""
    use, operations = jwk.get("use"), jwk.get("key_ops")
    return not (isinstance(use, str) and use != "sig") and not (
        isinstance(operations, list) and "verify" not in operations
    )


def candidates(keys: Sequence[Key], kid: str | None, alg: str) -> list[Key]:
    """The keys that may have signed a token with this kid and alg: those with the kid, or else those without any. A
    token without a kid may be of a key with one, if that is the only key of its algorithm. Raises AuthError when the
    kid belongs to a key of another algorithm; other keys must not be tried then."""
    named = [key for key in keys if key.kid == kid is not None]
    if not named:
        fitting = [key for key in keys if alg in key.algorithms]
        if kid is None and len(fitting) == 1:
            return fitting
        return [key for key in fitting if key.kid is None]
    fitting = [key for key in named if alg in key.algorithms]
    if not fitting:
        raise AuthError("the token's kid names a key of another alg", fix=f"{kid!r} is not for {alg}")
    return fitting
