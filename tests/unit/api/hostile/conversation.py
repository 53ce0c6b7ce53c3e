"""What a client says over one connection, and whose words it borrows."""

from __future__ import annotations

import hmac
import json
import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.fix_api import AUDIENCE, SECRET
from tests.support.signers import signer
from tests.unit.api.hostile.values import damaged_json

_DAY: Final = 86_000
_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'


@dataclass(frozen=True, slots=True)
class Conversation:
    """`kind` says what is wrong with it. The pieces are sent one after another; with `waits`, those behind the first
    only once that was answered. `last` is what an answer ends with that nothing follows, as far as that is known.
    `deaf` clients do not read."""

    kind: str
    pieces: Sequence[bytes]
    waits: bool = False
    last: bytes = b""
    deaf: bool = False


@dataclass(frozen=True, slots=True)
class Credentials:
    """Tokens of users that are good, other ones, and an operator's. `host` is what the endpoint is called."""

    good: Sequence[bytes]
    bad: Sequence[bytes]
    admin: bytes


def credentials(admin: str, seed: int, secret: bytes = SECRET, audience: str = AUDIENCE) -> Credentials:
    """Tokens for an endpoint that knows this shared secret."""
    now = int(time.time())
    claims: dict[str, Any] = {"sub": "u1", "aud": audience, "iat": now, "exp": now + _DAY}
    full = {**claims, "nbf": now, "parameters": {"a": 1, "b": ["c"]}, "role": "x", "jti": "t1", "session_id": "s1"}
    users = [{**claims, "sub": user} for user in ("u1", "u2", 3, ["u4"])]
    good = [_signed(_HEADER, json.dumps(each).encode(), secret) for each in (*users, full)]
    bad = [*_wrong(claims, secret, now), *_nonsense(), *_damaged(full, secret, random.Random(seed))]
    return Credentials(good, bad, admin.encode())


def _wrong(claims: dict[str, Any], secret: bytes, now: int) -> list[bytes]:
    """Whole tokens that are not taken."""
    changes: list[dict[str, Any]] = [
        {"iat": now - 7200, "exp": now - 3600}, {"exp": now + 10 * _DAY}, {"iat": now + 7200, "exp": now + 9000},
        {"exp": (now + 600) * 1000}, {"iat": None}, {"nbf": now + 7200}, {"aud": "else"}, {"sub": ""},
    ]  # fmt: skip
    written = json.dumps(claims).encode()
    return [
        *(_signed(_HEADER, json.dumps({**claims, **change}).encode(), secret) for change in changes),
        _signed(_HEADER, written, secret[::-1]),
        _signed(b'{"alg":"HS256","kid":"k9"}', written, secret),
        _signed(b'{"alg":"none"}', written, secret)[:-20],
        signer("ES256").token(aud=claims["aud"]).encode(),
    ]


def _nonsense() -> list[bytes]:
    return [b"", b"x", b".", b"..", b"a.b.c", b"e30.e30.", b"e30.e30.e30", b"=.=.=", b"." * 300, b"A" * 70_000]


def _damaged(claims: dict[str, Any], secret: bytes, chance: random.Random) -> list[bytes]:
    """Signed with the right key, whatever they say."""
    header: dict[str, Any] = {"alg": "HS256", "typ": "JWT", "kid": "k1", "crit": ["b64"], "b64": True, "x5c": ["a"]}
    found = [_signed(_HEADER, damaged_json(chance, claims), secret) for _ in range(300)]
    return found + [_signed(damaged_json(chance, header), json.dumps(claims).encode(), secret) for _ in range(100)]


def _signed(header: bytes, payload: bytes, secret: bytes) -> bytes:
    content = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload))
    signature = hmac.digest(secret, content, "sha256")
    return content + b"." + urlsafe_b64encode(signature).rstrip(b"=")
