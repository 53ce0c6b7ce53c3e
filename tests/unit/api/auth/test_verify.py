"""Which tokens prove a user, and what the others are told."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jwt
import pytest

from headwater.api.auth.claims import TrustedIssuer
from headwater.api.auth.errors import AuthError
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import DAY, HMAC, InvalidKeyError, Key, parse_key
from headwater.api.auth.verify import Principal, Verifier
from tests.support.fix_api import AUDIENCE, SECRET, jwk, make_token

OTHER = SECRET[::-1]


@dataclass(frozen=True)
class In:
    """A time so many seconds from the moment the test runs."""

    seconds: int


def token_with(claims: Mapping[str, object]) -> str:
    now = int(time.time())
    told = {name: now + value.seconds if isinstance(value, In) else value for name, value in claims.items()}
    return make_token(**told)  # type: ignore[arg-type]


def authorize(header: str | None, *keys: Mapping[str, object], audience: Sequence[str] = (AUDIENCE,)) -> Principal:
    held = KeyRing(tuple(parse_key(key) for key in keys or [jwk()]))
    return asyncio.run(Verifier(held, frozenset(audience)).authorize(header))


def signed(payload: bytes) -> str:
    return jwt.api_jws.encode(payload, SECRET, "HS256")


def refusal(header: str | None, *keys: Mapping[str, object], audience: Sequence[str] = (AUDIENCE,)) -> AuthError:
    with pytest.raises(AuthError) as raised:
        authorize(header, *keys, audience=audience)
    assert raised.value.status == 401
    return raised.value


@pytest.mark.parametrize("scheme", ["Token ", "Bearer ", "bearer ", "BEARER  ", "token \t", " Token   ", "tOkEn\t"])
@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
def test_good_token(scheme: str, alg: str) -> None:
    expires_at = int(time.time()) + 60
    user = authorize(f"{scheme}{make_token('u1', alg=alg, exp=expires_at, role='admin')} ", jwk(SECRET, alg))
    assert (user.user_id, user.expires_at, user.claims["role"]) == ("u1", expires_at, "admin")


@pytest.mark.parametrize(
    ("sub", "user_id"),
    [
        ("u1", "u1"),
        (7, "7"),
        (7.0, "7"),
        (2**53 + 1, "9007199254740993"),
        (-(10**30), "-1" + "0" * 30),
        (1.5, "1.5"),
        (True, "true"),
        ([1, "a"], '[1,"a"]'),
        ({"a": 1}, '{"a":1}'),
        ("u" * 1024, "u" * 1024),
    ],
)
def test_user_id(sub: object, user_id: str) -> None:
    assert authorize(f"Token {make_token(sub)}").user_id == user_id


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (None, "no Authorization header"),
        ("", "no Authorization header"),
        ("Token", "no token"),
        ("Token ", "no token"),
        ("Basic abc", "no token"),
        ("Tokenabc", "no token"),
        ("Token,abc", "no token"),
        ("Token a b", "no token"),
    ],
)
def test_header_without_token(header: str | None, said: str) -> None:
    error = refusal(header)
    assert error.code == "PSYNC_S2106"
    assert said in error.what


@pytest.mark.parametrize(
    ("claims", "code", "said"),
    [
        ({"exp": In(-61), "iat": In(-600)}, "PSYNC_S2103", "expired"),
        ({"exp": In(DAY), "iat": In(-1)}, "PSYNC_S2104", "86401 s"),
        ({"aud": "someone"}, "PSYNC_S2105", "another audience"),
        ({"aud": ["someone", "else"]}, "PSYNC_S2105", "another audience"),
        ({"aud": []}, "PSYNC_S2105", "another audience"),
        ({"aud": None}, "PSYNC_S2105", "'aud'"),
        ({"aud": 7}, "PSYNC_S2105", "another audience"),
        ({"sub": None}, "PSYNC_S2101", "'sub'"),
        ({"iat": None}, "PSYNC_S2101", "'iat'"),
        ({"exp": None}, "PSYNC_S2101", "'exp'"),
        ({"exp": "soon"}, "PSYNC_S2101", "'exp' is not a number"),
        ({"exp": "1900000000"}, "PSYNC_S2101", "'exp'"),
        ({"exp": float("inf")}, "PSYNC_S2101", "'exp' is not a number"),
        ({"iat": float("nan")}, "PSYNC_S2101", "'iat' is not a number"),
        ({"iat": True}, "PSYNC_S2101", "'iat' is not a number"),
        ({"iat": -(10**400)}, "PSYNC_S2101", "'iat' is not a number"),
        ({"iat": 10**400}, "PSYNC_S2101", "'iat' seems to be in milliseconds"),
        ({"nbf": "now"}, "PSYNC_S2101", "'nbf' is not a number"),
        ({"iat": In(120)}, "PSYNC_S2101", "not valid yet"),
        ({"nbf": In(120)}, "PSYNC_S2101", "its nbf is"),
        ({"exp": 1_900_000_000_000}, "PSYNC_S2104", "'exp' seems to be in milliseconds; sign it as seconds"),
        ({"iat": 1_700_000_000_000}, "PSYNC_S2101", "'iat' seems to be in milliseconds"),
        ({"parameters": "x"}, "PSYNC_S2101", "'parameters'"),
    ],
)
def test_invalid_claim(claims: dict[str, object], code: str, said: str) -> None:
    error = refusal(f"Token {token_with(claims)}")
    assert error.code == code
    assert said in str(error)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": In(-50), "iat": In(-600)},
        {"iat": In(50)},
        {"nbf": In(50)},
        {"exp": In(DAY), "iat": In(0)},
        {"aud": ["someone", AUDIENCE]},
        {"parameters": {"a": 1}},
    ],
)
def test_claims_at_the_edge(claims: dict[str, object]) -> None:
    assert authorize(f"Token {token_with(claims)}").user_id == "u1"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("abc", "not a JWT"),
        ("a.b.c", "not a JWT"),
        ("....", "not a JWT"),
        (urlsafe_b64encode(b"[" * 30_000).decode() + ".e30.AA", "not a JWT"),
        ("a" * 70_000, "too long"),
        (signed(b"[" * 30_000), "payload is not a JSON object"),
        (signed(b"[]"), "payload is not a JSON object"),
        (signed(b"{"), "payload is not a JSON object"),
        (jwt.encode({"sub": "u1"}, "", "none"), "'none'"),
        (make_token(secret=OTHER), "signature"),
        (make_token()[:-4] + "AAAA", "signature"),
        (make_token(alg="HS384"), "no kid and alg HS384"),
        ("eyJhbGciOiJIUzI1NiIsImtpZCI6N30.e30.AA", "not a JWT"),  # a kid that is a number
    ],
)
def test_invalid_token(token: str, said: str) -> None:
    error = refusal(f"Token {token}")
    assert error.code == "PSYNC_S2101"
    assert said in str(error)


@pytest.mark.parametrize(
    ("sub", "said"),
    [
        ("", "is empty"),
        ("a\0b", "contains a NUL"),
        ("\ud800", "can't be written as text"),
        (["\ud800"], "can't be written as text"),
        ({"a": 2**70}, "can't be written as text"),
        (float("nan"), "can't be written as text"),
        ([float("inf")], "can't be written as text"),
        ("u" * 1025, "is too long; it has 1025 bytes"),
        ("ü" * 513, "is too long; it has 1026 bytes"),
        (10**1024, "is too long"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_unusable_user_id(sub: object, said: str) -> None:
    error = refusal(f"Token {make_token(sub)}")
    assert error.code == "PSYNC_S2101"
    assert f"the claim 'sub' can't be used as a user id: it {said}" in str(error)


def test_refusal_never_repeats_the_token() -> None:
    token = make_token(secret=OTHER, email="someone@example.org")
    assert token.split(".")[1] not in str(refusal(f"Token {token}"))


def test_kid() -> None:
    keys = [jwk(kid="a"), jwk(OTHER, kid="b")]
    assert authorize(f"Token {make_token(secret=OTHER, header={'kid': 'b'})}", *keys).user_id == "u1"
    assert "signature" in refusal(f"Token {make_token(header={'kid': 'b'})}", *keys).what


def test_kid_of_another_algorithm() -> None:
    keys = [jwk(SECRET, "HS512", kid="a"), jwk(SECRET)]
    error = refusal(f"Token {make_token(secret=SECRET, header={'kid': 'a'})}", *keys)
    assert "'a' is not for HS256" in error.fix


def test_keys_without_kid() -> None:
    keys = [jwk(OTHER), jwk()]
    assert authorize(f"Token {make_token()}", *keys).user_id == "u1"
    assert authorize(f"Token {make_token(header={'kid': 'unknown'})}", *keys).user_id == "u1"


def test_token_without_kid() -> None:
    assert authorize(f"Token {make_token()}", jwk(kid="a")).user_id == "u1"
    assert "signature" in refusal(f"Token {make_token(secret=OTHER)}", jwk(kid="a")).what
    assert "with a kid in its header: 2 keys" in refusal(f"Token {make_token()}", jwk(kid="a"), jwk(OTHER, kid="b")).fix
    assert authorize(f"Token {make_token()}", jwk(kid="a"), jwk(SECRET, "HS512", kid="b")).user_id == "u1"
    assert "kid 'c'" in refusal(f"Token {make_token(header={'kid': 'c'})}", jwk(kid="a")).fix


ISSUER = "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_pool"


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ({"iss": ISSUER, "client_id": "app"}, True),
        ({"iss": ISSUER, "client_id": "app", "azp": "https://app.example"}, True),
        ({"iss": "https://clerk.example", "azp": "https://app.example"}, True),
        ({"iss": "https://clerk.example", "azp": "https://other.example"}, False),
        ({"iss": "https://clerk.example", "client_id": "app"}, False),
        ({"iss": ISSUER, "client_id": "other"}, False),
        ({"iss": ISSUER, "client_id": ["app"]}, False),
        ({"iss": ISSUER}, False),
        ({"iss": [ISSUER], "client_id": "app"}, False),
        ({"iss": ISSUER + "/", "client_id": "app"}, False),
        ({"client_id": "app"}, False),
        ({"iss": ISSUER, "client_id": "app", "aud": "another"}, False),
        ({"iss": ISSUER, "client_id": "app", "aud": []}, False),
        ({"iss": "https://other.example", "aud": AUDIENCE}, True),
    ],
)
def test_trusted_issuers(claims: Mapping[str, object], accepted: bool) -> None:
    issuers = (
        TrustedIssuer(ISSUER, {"client_id": frozenset({"app"})}),
        TrustedIssuer("https://clerk.example", {"azp": frozenset({"https://app.example"})}),
    )

    def verified(key: Key) -> Principal:
        now = int(time.time())
        payload = {"sub": "u1", "iat": now, "exp": now + 60, **claims}
        verifier = Verifier(KeyRing((key,)), frozenset({AUDIENCE}), issuers=issuers)
        return asyncio.run(verifier.authorize(f"Token {signed(json.dumps(payload).encode())}"))

    if accepted:
        assert verified(parse_key(jwk())).user_id == "u1"
    else:
        with pytest.raises(AuthError) as caught:
            verified(parse_key(jwk()))
        assert caught.value.code == "PSYNC_S2105"
    if "aud" not in claims:
        with pytest.raises(AuthError):  # of a provider whose keys all its customers share
            verified(replace(parse_key(jwk()), audience=frozenset({"project"})))


def test_no_audience() -> None:
    assert refusal(f"Token {make_token()}", audience=()).code == "PSYNC_S2105"


def test_audience_of_the_key() -> None:
    key = replace(parse_key(jwk()), audience=frozenset({"authenticated"}))
    verifier = Verifier(KeyRing((key,)), frozenset({AUDIENCE}))
    assert asyncio.run(verifier.verify(make_token(aud="authenticated"))).user_id == "u1"
    with pytest.raises(AuthError):
        asyncio.run(verifier.verify(make_token()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kty": "DSA"}, "kty 'DSA'"),
        ({"kty": None}, "kty None"),
        ({"alg": None}, "alg None"),
        ({"alg": "RS256"}, "alg 'RS256'"),
        ({"kid": 7}, "kid"),
        ({"k": None}, "`k`"),
        ({"k": ""}, "`k`"),
        ({"k": "no base64!"}, "`k`"),
        ({"k": "A"}, "`k`"),
        ({"k": urlsafe_b64encode(b"fifteen bytes..").decode()}, "the secret has 15 bytes"),
        ({"k": urlsafe_b64encode(b"-----BEGIN PUBLIC KEY-----").decode()}, "PEM"),
    ],
)
def test_unusable_secret(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        parse_key(jwk() | change)
    assert said in refused.value.what
    assert json.dumps(jwk()["k"]) not in str(refused.value)


def test_base64_alphabets() -> None:
    secret = bytes([0xFB, 0xFF]) * 20
    text = urlsafe_b64encode(secret).decode()
    for written in (text, text.rstrip("="), text.replace("-", "+").replace("_", "/")):
        assert authorize(f"Token {make_token(secret=secret)}", jwk() | {"k": written}).user_id == "u1"
    assert text not in repr(parse_key(jwk(secret)))


# a secret that is one thing for the issuer and another one in the config


NO_TEXT = bytes(range(0xD0, 0x100))
"""Bytes that no text has."""


def configured(k: str) -> Key:
    return parse_key({"kty": "oct", "alg": "HS256", "k": k})


def raw(text: bytes) -> Key:
    """A secret that the config has as it is, like a Supabase project's."""
    return Key(None, HMAC, text)


def details(key: Key, signed_with: bytes) -> str:
    token = make_token(secret=signed_with)
    with pytest.raises(AuthError, match="the token's signature is wrong") as refused:
        asyncio.run(Verifier(KeyRing((key,)), frozenset({AUDIENCE})).verify(token))
    assert refused.value.code == "PSYNC_S2101"
    return refused.value.fix


@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_signed_with_the_text(encode: Callable[[bytes], bytes]) -> None:
    text = encode(NO_TEXT + b"x")
    assert text.endswith(b"=")
    for written in (text, text.rstrip(b"=")):
        assert details(configured(text.decode()), written).startswith("it is signed with the base64 text")


def test_signed_with_the_bytes() -> None:
    text = b64encode(NO_TEXT)
    as_text = configured(urlsafe_b64encode(text).decode())
    for key in (as_text, raw(text), raw(text + b"\n")):
        told = "the configured secret is base64 text, and the token is signed with the bytes"
        assert details(key, NO_TEXT).startswith(told)


def test_line_break() -> None:
    secret = b"a secret of thirty-two characters"
    plain, broken = (configured(b64encode(each).decode()) for each in (secret, secret + b"\n"))
    assert "begins or ends with white space" in details(broken, secret)
    assert "the issuer's secret ends with a line break" in details(plain, secret + b"\n")


def test_another_secret() -> None:
    assert details(configured(b64encode(NO_TEXT).decode()), NO_TEXT[::-1]).startswith("check that the key")
