"""Converts a key in JWK form to what PyJWT checks signatures with."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import get_default_algorithms

from headwater.errors import HeadwaterError

Material: TypeAlias = bytes | RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

HMAC = frozenset({"HS256", "HS384", "HS512"})
"""The algorithms of shared secrets. Whoever can check such a signature can also make one."""

ALGORITHMS: Mapping[str, frozenset[str]] = {
    "oct": HMAC,
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA", "Ed25519", "Ed448"}),
}
"""The algorithms that each type of key (`kty`) may sign with."""

_KNOWN = get_default_algorithms()
_KNOWN |= dict.fromkeys(ALGORITHMS["OKP"], _KNOWN["EdDSA"])  # PyJWT has the older of the two names of RFC 9864 only
SIGNATURES = {name: _KNOWN[name] for names in ALGORITHMS.values() for name in names}
"""The implementation of each algorithm."""

_CURVES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "EC": {"P-256": frozenset({"ES256"}), "P-384": frozenset({"ES384"}), "P-521": frozenset({"ES512"})},
    "OKP": {curve: frozenset({"EdDSA", curve}) for curve in ("Ed25519", "Ed448")},
}
_PUBLIC: Mapping[str, tuple[str, ...]] = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_SHORTEST_RSA = 2048
SHORTEST_SECRET, GOOD_SECRET = 16, 32
"""In bytes. A shorter secret than the first is refused. RFC 7518 demands the second, but secrets in use are shorter."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)  # base64 and base64url, since Node decodes both


class InvalidKeyError(HeadwaterError):
    """A configured key can't be used."""

    code = "PSYNC_S2201"


def read_material(jwk: Mapping[str, object], where: str) -> tuple[frozenset[str], Material]:
    """The algorithms of a key, and the key itself without its private part. Raises InvalidKeyError, whose message
    never contains a secret."""
    kty, alg = jwk.get("kty"), jwk.get("alg")
    family = ALGORITHMS.get(kty) if isinstance(kty, str) else None
    if family is None or not isinstance(kty, str):
        raise InvalidKeyError(f"kty {kty!r} is not supported", where, f"use one of {', '.join(sorted(ALGORITHMS))}")
    if kty in _CURVES:
        family = _algorithms_of_curve(jwk, kty, where)
    if (alg is None and kty == "oct") or (alg is not None and not (isinstance(alg, str) and alg in family)):
        raise InvalidKeyError(f"alg {alg!r} does not fit the key", where, f"use one of {', '.join(sorted(family))}")
    # the names that an OKP key may have mean one algorithm, since its curve decides
    fitting = family if alg is None or kty == "OKP" else frozenset({str(alg)})
    return fitting, _secret(jwk, where) if kty == "oct" else _public_key(jwk, kty, fitting, where)


def _algorithms_of_curve(jwk: Mapping[str, object], kty: str, where: str) -> frozenset[str]:
    curve = jwk.get("crv")
    if not isinstance(curve, str) or curve not in _CURVES[kty]:
        raise InvalidKeyError(f"crv {curve!r} is not supported", where, f"use one of {', '.join(_CURVES[kty])}")
    return _CURVES[kty][curve]


def _secret(jwk: Mapping[str, object], where: str) -> bytes:
    written = jwk.get("k")
    secret = decoded(written) if isinstance(written, str) else None
    if not secret:
        raise InvalidKeyError("the secret `k` can't be read", where, "give it as base64url text")
    check_secret(secret, where)
    return secret


def check_secret(secret: bytes, where: str) -> None:
    """Raise InvalidKeyError for a secret that is too short, or is a key in PEM form."""
    if secret.lstrip().startswith(b"-----BEGIN"):
        raise InvalidKeyError("the secret is a key in PEM form", where, "give a public key as {kty: RSA, n: …, e: …}")
    if len(secret) < SHORTEST_SECRET:
        what = f"the secret has {len(secret)} bytes, which is too short to be safe"
        raise InvalidKeyError(what, where, f"make one of {GOOD_SECRET}: openssl rand -base64 {GOOD_SECRET}")


def decoded(text: str) -> bytes | None:
    """Decode base64 or base64url, padded or not. None when the text is neither."""
    if not _BASE64.fullmatch(text):
        return None
    plain = text.translate(str.maketrans("+/", "-_")).rstrip("=")
    try:
        return base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
    except ValueError:
        return None


def _public_key(jwk: Mapping[str, object], kty: str, fitting: frozenset[str], where: str) -> Material:
    public = {name: jwk.get(name) for name in _PUBLIC[kty]}
    lacking = [name for name, value in public.items() if not isinstance(value, str) or not value]
    if lacking:
        raise InvalidKeyError(f"`{lacking[0]}` is missing, or not text", where, "copy the key once more")
    try:
        key: Material = SIGNATURES[min(fitting)].from_jwk({"kty": kty, **public})
    except (jwt.PyJWTError, ValueError, TypeError):  # their messages may quote the key
        raise InvalidKeyError("the key can't be read", where, "copy the key once more") from None
    if isinstance(key, RSAPublicKey) and key.key_size < _SHORTEST_RSA:
        what = f"an RSA key of {key.key_size} bits can be broken"
        raise InvalidKeyError(what, where, f"use one of {_SHORTEST_RSA} bits or more")
    return key
