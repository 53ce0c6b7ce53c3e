"""A secret that is one thing for the issuer and another one in the config: refused, and told what is wrong."""

from __future__ import annotations

import asyncio
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable

import pytest

from headwater.api.auth.errors import AuthError
from headwater.api.auth.keys import HMAC, Key, parse_key
from headwater.api.auth.remote import KeyRing
from headwater.api.auth.verify import Verifier
from tests.support.fix_api import AUDIENCE, make_token

SECRET = bytes(range(0xD0, 0x100))
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
    text = encode(SECRET + b"x")
    assert text.endswith(b"=")
    for written in (text, text.rstrip(b"=")):
        assert details(configured(text.decode()), written).startswith("it is signed with the base64 text")


def test_signed_with_the_bytes() -> None:
    text = b64encode(SECRET)
    as_text = configured(urlsafe_b64encode(text).decode())
    for key in (as_text, raw(text), raw(text + b"\n")):
        told = "the configured secret is base64 text, and the token is signed with the bytes"
        assert details(key, SECRET).startswith(told)


def test_line_break() -> None:
    secret = b"a secret of thirty-two characters"
    plain, broken = (configured(b64encode(each).decode()) for each in (secret, secret + b"\n"))
    assert "begins or ends with white space" in details(broken, secret)
    assert "the issuer's secret ends with a line break" in details(plain, secret + b"\n")


def test_another_secret() -> None:
    assert details(configured(b64encode(SECRET).decode()), SECRET[::-1]).startswith("check that the key")
