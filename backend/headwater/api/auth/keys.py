"""The keys that tokens are signed with, how they are read from JWKs, and which of them may verify a token."""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import get_default_algorithms
from jwt.warnings import InsecureKeyLengthWarning

from headwater.api.auth.errors import AuthError, JwksError
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
    """A key's algorithms, and the key without its private part. Raises InvalidKeyError, which contains no secret."""
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


def sign(claims: Mapping[str, object], key: Key) -> str:
    """Make a token, signed with a shared secret."""
    assert isinstance(key.material, bytes)
    headers = None if key.kid is None else {"kid": key.kid}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureKeyLengthWarning)  # reading the config warned already
        return jwt.encode(dict(claims), key.material, min(key.algorithms), headers=headers)
