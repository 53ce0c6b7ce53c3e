"""Whatever a stranger sends is refused as a token, and whatever an issuer publishes is read as far as it is keys."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode

import jwt
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.auth.errors import AuthError
from headwater.api.auth.fetch import read_set
from headwater.api.auth.keys import KeyAddress, parse_key
from headwater.api.auth.remote import KeyRing
from headwater.api.auth.verify import Principal, Verifier
from tests.support.fix_api import AUDIENCE, SECRET, jwk, make_token
from tests.support.signers import signer

VERIFIER = Verifier(
    KeyRing((parse_key(jwk()), parse_key(signer().jwk()), parse_key(signer("ES256", "k2").jwk()))),
    frozenset({AUDIENCE}),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
ALGS = st.sampled_from(["HS256", "HS384", "RS256", "ES256", "EdDSA", "none"])
KIDS = st.sampled_from(["k1", "k2", "k3"])


def verified(token: str) -> Principal | None:
    """None for one that is refused as it should be: by an error that clients know."""
    try:
        return asyncio.run(VERIFIER.verify(token))
    except AuthError:
        return None


def part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@settings(deadline=None)
@given(st.text(max_size=40) | st.text("aA0-_.=", max_size=40))
def test_any_text(text: str) -> None:
    assert verified(text) is None


@settings(deadline=None)
@given(st.fixed_dictionaries({"alg": VALUES | ALGS}, optional={"kid": VALUES | KIDS, "crit": VALUES, "b64": VALUES}))
def test_any_header(header: dict[str, object]) -> None:
    _, claims, signature = make_token().split(".")
    for tail in (signature, "", part({})):
        assert verified(f"{part(header)}.{claims}.{tail}") is None


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["sub", "iat", "exp", "nbf", "aud", "parameters", "jti", "sid"]), VALUES))
def test_any_claims(claims: dict[str, object]) -> None:
    good = json.loads(jwt.api_jws.decode(make_token(), SECRET, ["HS256"]))
    user = verified(jwt.api_jws.encode(json.dumps({**good, **claims}).encode(), SECRET, "HS256"))
    if user is not None:
        assert 1 <= len(user.user_id.encode()) <= 1024
        assert "\0" not in user.user_id


NAMES = st.sampled_from(["kty", "alg", "kid", "use", "key_ops", "n", "e", "crv", "x", "y", "k", "d"])
PARTS = VALUES | st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "Ed25519", "RS256", "sig", "AQAB", "enc"])


@settings(deadline=None)
@given(st.lists(st.dictionaries(NAMES, PARTS), max_size=4), st.dictionaries(NAMES, PARTS, max_size=2))
def test_any_set(strange: list[dict[str, object]], changed: dict[str, object]) -> None:
    listed = [*strange, {**signer("ES256").jwk(), **changed}, signer("ES256", "good").jwk()]
    assert "good" in [key.kid for key in read_set([*listed], KeyAddress("https://x")).keys]
