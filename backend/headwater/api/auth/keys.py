"""Keys that tokens are signed with, and which of them a token may use.

A place that keys come from is one implementation of `KeySource`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headwater.api.auth.errors import AuthError
from headwater.api.auth.material import SIGNATURES, InvalidKeyError, Material, read_material

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Key:
    """A trusted key. Without a `kid` it is tried for every token of its algorithms. `audience` replaces the
    configured one; `max_lifetime` is in seconds. `written` is how a secret stands in the config."""

    kid: str | None
    algorithms: frozenset[str]
    material: Material = field(repr=False)
    audience: frozenset[str] | None = None
    max_lifetime: int = DAY
    written: str | None = field(default=None, repr=False)

    def signed(self, alg: str, message: bytes, signature: bytes) -> bool:
        """Whether this key made the signature, with an algorithm of its own."""
        # material is of the kind that its algorithms take; a key of one kind never meets those of another
        return alg in self.algorithms and bool(SIGNATURES[alg].verify(message, self.material, signature))


class KeySource(Protocol):
    """Where keys come from: the config, addresses. Lives in the event loop."""

    def known(self) -> Sequence[Key]:
        """Every key trusted now, without waiting."""

    async def look_again(self) -> bool:
        """Called for a token that no known key signed. Whether others may be known now. Raises JwksError."""

    def start(self) -> None:
        """Begin to keep the keys fresh."""

    async def close(self) -> None:
        """End that."""


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys from the config."""

    held: tuple[Key, ...]

    def known(self) -> Sequence[Key]:
        return self.held

    async def look_again(self) -> bool:
        return False

    def start(self) -> None:
        """They stay as they are."""

    async def close(self) -> None:
        """They stay as they are."""


def parse_key(jwk: Mapping[str, object]) -> Key:
    """A key in JWK form. Raises InvalidKeyError, which never shows the secret."""
    kid = jwk.get("kid")
    where = f"key {kid}" if kid is not None else "a key without kid"
    algorithms, material = read_material(jwk, where)
    if kid is not None and not isinstance(kid, str):
        raise InvalidKeyError("kid is not a string", where, "put it in quotes")
    return Key(kid, algorithms, material, written=str(jwk["k"]) if isinstance(material, bytes) else None)


def checks_signatures(jwk: Mapping[str, object]) -> bool:
    """Whether a key is meant for what it is wanted for, and not for encryption."""
    use, operations = jwk.get("use"), jwk.get("key_ops")
    return not (isinstance(use, str) and use != "sig") and not (
        isinstance(operations, list) and "verify" not in operations
    )


def candidates(keys: Sequence[Key], kid: str | None, alg: str) -> list[Key]:
    """The keys that a token with this header may have been signed with. Raises AuthError when its kid names a key
    of another algorithm: another key must not be tried then."""
    named = [key for key in keys if key.kid == kid is not None]
    if not named:
        return [key for key in keys if key.kid is None and alg in key.algorithms]
    fitting = [key for key in named if alg in key.algorithms]
    if not fitting:
        raise AuthError("the token's kid names a key of another alg", fix=f"{kid!r} is not for {alg}")
    return fitting
