"""Issuers of tokens, with a key of their own each, of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import OKPAlgorithm

CURVES: Mapping[str, Callable[[], ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}
PUBLIC_KINDS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "Ed448"),
)
"""Names for what `signer` makes: an algorithm, or a curve of EdDSA."""

_JWS = jwt.PyJWS()
_JWS.register_algorithm("Ed25519", OKPAlgorithm())
_JWS.register_algorithm("Ed448", OKPAlgorithm())


@dataclass(frozen=True)
class Signer:
    """An issuer. `alg` is what its tokens say."""

    alg: str
    private: Any
    kid: str | None

    def jwk(self, **more: object) -> dict[str, object]:
        """The public key, as an issuer publishes it. What is given as None is left out."""
        algorithm = _JWS.get_algorithm_by_name(self.alg)
        found: Mapping[str, object] = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        named = {"kid": self.kid, "alg": self.alg, "use": "sig", **more}
        plain = {name: value for name, value in found.items() if name != "key_ops"}
        return {name: value for name, value in {**plain, **named}.items() if value is not None}

    def token(self, sub: object = "u1", *, header: Mapping[str, object] | None = None, **claims: object) -> str:
        """A signed token for `app`, valid for ten minutes. A claim or header given as None is left out."""
        now = int(time.time())
        payload = {"sub": sub, "aud": "app", "iat": now, "exp": now + 600, **claims}
        headers = {name: value for name, value in {"kid": self.kid, **(header or {})}.items() if value is not None}
        content = json.dumps({name: value for name, value in payload.items() if value is not None}).encode()
        return _JWS.encode(content, self.private, self.alg, headers=headers)


@cache
def signer(kind: str = "RS256", kid: str | None = "k1") -> Signer:
    """The issuer of that kind and kid: always the same one within a run."""
    if kind.startswith(("RS", "PS")):
        return Signer(kind, rsa.generate_private_key(65537, 2048), kid)
    if kind in CURVES:
        return Signer(kind, ec.generate_private_key(CURVES[kind]()), kid)
    private = ed448.Ed448PrivateKey.generate() if kind == "Ed448" else ed25519.Ed25519PrivateKey.generate()
    return Signer("EdDSA", private, kid)
