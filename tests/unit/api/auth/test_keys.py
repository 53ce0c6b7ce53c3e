"""Keys of every kind: tokens that they signed are accepted, and no trick passes a token off as one of those. Whatever a
stranger sends is refused as a token, and whatever an issuer publishes is read as far as it is keys."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.auth.errors import AuthError
from headwater.api.auth.fetch import read_set
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import InvalidKeyError, KeyAddress, parse_key
from headwater.api.auth.verify import Principal, Verifier
from tests.support.fix_api import AUDIENCE, SECRET, make_token
from tests.support.fix_api import jwk as secret_jwk
from tests.support.signers import PUBLIC_KINDS, Signer, signer


def verify(token: str, *keys: Mapping[str, object]) -> Principal:
    held = KeyRing(tuple(parse_key(key) for key in keys))
    return asyncio.run(Verifier(held, frozenset({"app"})).verify(token))


def refusal(token: str, *keys: Mapping[str, object]) -> AuthError:
    with pytest.raises(AuthError) as raised:
        verify(token, *keys)
    assert raised.value.status == 401
    return raised.value


def part(content: object) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def pem(of: Signer) -> bytes:
    content: bytes = of.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return content


@pytest.mark.parametrize("kind", PUBLIC_KINDS)
@pytest.mark.parametrize("named", [True, False], ids=["with alg", "without"])
def test_key_of_every_kind(kind: str, named: bool) -> None:
    issuer = signer(kind)
    assert verify(issuer.token(), issuer.jwk(alg=issuer.alg if named else None)).user_id == "u1"


@pytest.mark.parametrize("kind", PUBLIC_KINDS)
def test_another_key_of_the_same_kind(kind: str) -> None:
    issuer, other = signer(kind), signer(kind, "k2")
    assert "signature is wrong" in refusal(other.token(header={"kid": "k1"}), issuer.jwk()).what


@pytest.mark.parametrize("curve", ["Ed25519", "Ed448"])
@pytest.mark.parametrize("published", ["EdDSA", "the curve", None])
@pytest.mark.parametrize("sent", ["EdDSA", "the curve"])
def test_edwards_curve_has_two_names(curve: str, published: str | None, sent: str) -> None:
    named = {"the curve": curve}
    issuer = Signer(named.get(sent, sent), signer(curve).private, "k1")
    key = issuer.jwk(alg=named.get(published or "", published))
    assert verify(issuer.token(), key).user_id == "u1"


def test_rsa_padding() -> None:
    older, newer = signer(), Signer("PS256", signer().private, "k1")
    assert "another alg" in refusal(newer.token(), older.jwk()).what
    assert "another alg" in refusal(older.token(), newer.jwk()).what
    message, _, signature = older.token().rpartition(".")
    renamed = f"{part({'alg': 'PS256', 'kid': 'k1'})}.{message.split('.')[1]}.{signature}"
    assert "signature" in refusal(renamed, older.jwk(alg=None)).what


@pytest.mark.parametrize("alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_rsa_hashes(alg: str) -> None:
    token = Signer(alg, signer().private, "k1").token()
    assert verify(token, signer().jwk(alg=None)).user_id == "u1"
    if alg != "RS256":
        assert "another alg" in refusal(token, signer().jwk()).what


def test_private_key() -> None:
    issuer = signer("ES256")
    whole = jwt.algorithms.ECAlgorithm.to_jwk(issuer.private, as_dict=True)
    assert "d" in whole
    key = parse_key({**whole, "kid": "k1"})
    assert isinstance(key.material, ec.EllipticCurvePublicKey)


@pytest.mark.parametrize("kind", ["RS256", "PS256", "ES256", "Ed25519"])
@pytest.mark.parametrize("hmac", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("kid", ["k1", None, "other"])
def test_public_key_is_no_secret(kind: str, hmac: str, kid: str | None) -> None:
    issuer = signer(kind)
    claims = issuer.token().split(".")[1]
    for secret in (pem(issuer), pem(issuer).strip(), json.dumps(issuer.jwk()).encode()):
        message = f"{part({'alg': hmac, **({'kid': kid} if kid else {})})}.{claims}"
        algorithm = jwt.algorithms.HMACAlgorithm(getattr(jwt.algorithms.HMACAlgorithm, f"SHA{hmac[2:]}"))
        signature = algorithm.sign(message.encode(), secret)
        token = f"{message}.{urlsafe_b64encode(signature).decode().rstrip('=')}"
        assert refusal(token, issuer.jwk(), issuer.jwk(kid=None)).code == "PSYNC_S2101"


@pytest.mark.parametrize("alg", ["none", "nOnE", "", "PS1", "ps256", "ES256K", "RS1", "HS1", None, ["RS256"], 5])
@pytest.mark.parametrize("keys", ["of its kid", "without kid"])
def test_unknown_alg(alg: object, keys: str) -> None:
    issuer = signer()
    _, claims, signature = issuer.token().split(".")
    for tail in (signature, ""):
        token = f"{part({'alg': alg, 'kid': 'k1'})}.{claims}.{tail}"
        assert "alg" in refusal(token, issuer.jwk(kid="k1" if keys == "of its kid" else None, alg=None)).what


def test_tokens_of_another_curve() -> None:
    small, large = signer("ES256"), signer("ES384")
    assert "another alg" in refusal(large.token(), small.jwk(alg=None)).what
    assert "no configured key" in refusal(large.token(header={"kid": None}), small.jwk(kid=None, alg=None)).what
    edwards = signer("Ed448")
    assert "signature" in refusal(edwards.token(), signer("Ed25519").jwk()).what
    renamed = Signer("Ed25519", edwards.private, "k1").token()
    for alg in ("Ed448", "EdDSA", None):
        assert "another alg" in refusal(renamed, edwards.jwk(alg=alg)).what


def test_kid_of_another_type_of_key() -> None:
    issuer = signer(kid=None)
    token = issuer.token(header={"kid": "k1"})
    assert verify(token, issuer.jwk()).user_id == "u1"
    assert "another alg" in refusal(token, issuer.jwk(), signer("ES256").jwk()).what


def test_signed_refuses_other_algorithms() -> None:
    token = Signer("RS512", signer().private, "k1").token()
    message, _, signature = token.rpartition(".")
    made = urlsafe_b64decode(signature + "==")
    assert parse_key(signer().jwk(alg=None)).signed("RS512", message.encode(), made)
    assert not parse_key(signer().jwk(alg="RS256")).signed("RS512", message.encode(), made)
    assert not parse_key(signer().jwk(alg=None)).signed("HS512", message.encode(), made)


def test_shared_kid() -> None:
    rsa_key, curve = signer("RS256", "same"), signer("ES256", "same")
    for issuer in (rsa_key, curve):
        assert verify(issuer.token(), rsa_key.jwk(), curve.jwk()).user_id == "u1"


def test_key_in_the_header_is_ignored() -> None:
    stranger = signer("RS256", "stranger")
    header = {"kid": None, "jwk": stranger.jwk(), "jku": "https://stranger.example/jwks", "x5u": "https://stranger"}
    token = stranger.token(header=header)
    assert "signature" in refusal(token, signer().jwk()).what
    assert "signature" in refusal(token, signer().jwk(kid=None)).what


def test_crit() -> None:
    token = signer().token(header={"crit": ["exp-v2"], "exp-v2": 1})
    assert refusal(token, signer().jwk()).what == "the token is not a JWT"


def test_changed_token() -> None:
    head, claims, signature = signer().token("u1").split(".")
    other = signer().token("u2").split(".")[1]
    wider = part({"alg": "RS256", "kid": "k1", "x": 1})
    forged = "A" * len(signature)
    for token in (f"{head}.{other}.{signature}", f"{wider}.{claims}.{signature}", f"{head}.{claims}.{forged}"):
        assert "signature" in refusal(token, signer().jwk()).what


@pytest.mark.parametrize("signature", [b"", b"\0" * 64, b"\0" * 63, b"\0" * 65, b"\xff" * 64])
def test_malformed_signature(signature: bytes) -> None:
    issuer = signer("ES256")
    unsigned = issuer.token().rpartition(".")[0]
    token = f"{unsigned}.{urlsafe_b64encode(signature).decode().rstrip('=')}"
    assert refusal(token, issuer.jwk()).code == "PSYNC_S2101"


def small_rsa() -> dict[str, object]:
    return Signer("RS256", rsa.generate_private_key(65537, 1024), "k1").jwk()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (signer().jwk(alg="RS1"), "alg 'RS1' does not fit the key"),
        (signer().jwk(alg="ES256"), "alg 'ES256' does not fit the key"),
        (signer("ES256").jwk(alg="PS256"), "alg 'PS256' does not fit the key"),
        (signer("Ed448").jwk(alg="Ed25519"), "alg 'Ed25519' does not fit the key"),
        (signer("Ed25519").jwk(alg="PS256"), "alg 'PS256' does not fit the key"),
        (signer().jwk(alg="HS256"), "alg 'HS256' does not fit the key"),
        (signer().jwk(alg=["RS256"]), "does not fit the key"),
        (signer().jwk(n=None), "`n` is missing"),
        (signer().jwk(e=3), "`e` is missing, or not text"),
        (signer().jwk(n="AQAB"), "the key can't be read"),
        (signer().jwk(n="***"), "the key can't be read"),
        (small_rsa(), "an RSA key of 1024 bits can be broken"),
        (signer("ES256").jwk(alg="ES384"), "alg 'ES384' does not fit the key"),
        (signer("ES256").jwk(crv="secp256k1"), "crv 'secp256k1' is not supported"),
        (signer("ES256").jwk(crv=["P-256"]), "crv ['P-256'] is not supported"),
        (signer("ES256").jwk(x="AQAB"), "the key can't be read"),
        (signer("Ed25519").jwk(crv="X25519"), "crv 'X25519' is not supported"),
        (signer("Ed25519").jwk(crv="Ed448"), "the key can't be read"),
        (secret_jwk() | {"alg": None}, "alg None"),
    ],
)
def test_unusable_key(key: Mapping[str, object], said: str) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        parse_key(key)
    assert said in refused.value.what


VERIFIER = Verifier(
    KeyRing((parse_key(secret_jwk()), parse_key(signer().jwk()), parse_key(signer("ES256", "k2").jwk()))),
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
