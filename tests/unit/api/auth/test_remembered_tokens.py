"""A token that comes again is not verified again, and is refused for every reason that it would be refused for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from headwater.api.auth.errors import AuthError, TokenExpiredError, TokenRevokedError
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import Key, parse_key
from headwater.api.auth.verify import LONGEST_KEPT, Principal, RememberedTokens, Verifier
from headwater.storage.contract.store import Revocation, RevokedKind
from tests.support.fix_api import AUDIENCE, jwk, make_token

NOW = time.time()
KEY = parse_key(jwk())


class Changing(KeyRing):
    """Keys that can be replaced."""

    def __init__(self, *keys: Key) -> None:
        super().__init__((), ())
        self.now: Sequence[Key] = keys

    def known(self) -> Sequence[Key]:
        return self.now


def verifier(*keys: Key) -> tuple[Verifier, Changing]:
    source = Changing(*keys)
    return Verifier(source, frozenset({AUDIENCE})), source


def user(checks: Verifier, token: str) -> Principal:
    return asyncio.run(checks.verify(token))


def test_known_token() -> None:
    checks, _ = verifier(KEY)
    token = make_token("u1")
    assert user(checks, token) is user(checks, token)
    assert user(checks, make_token("u2")).user_id == "u2"


def test_changed_token_is_not_known() -> None:
    checks, _ = verifier(KEY)
    token = make_token("u1")
    user(checks, token)
    for place in (5, len(token) // 2, len(token) - 10):
        other = "A" if token[place] != "A" else "B"
        with pytest.raises(AuthError):
            user(checks, token[:place] + other + token[place + 1 :])


def test_known_token_whose_key_is_gone() -> None:
    checks, keys = verifier(KEY)
    token = make_token("u1")
    user(checks, token)
    keys.now = [parse_key(jwk(secret=b"another secret of thirty-two byt"))]
    with pytest.raises(AuthError):
        user(checks, token)
    keys.now = [parse_key(jwk())]
    assert user(checks, token).user_id == "u1"


def test_known_token_whose_key_is_fetched_again() -> None:
    checks, keys = verifier(KEY)
    token = make_token("u1")
    known = user(checks, token)
    keys.now = [parse_key(jwk(kid="new", secret=b"another secret of thirty-two byt")), parse_key(jwk())]
    assert user(checks, token) is known


def test_known_token_is_revoked() -> None:
    checks, _ = verifier(KEY)
    token = make_token("u1", iat=int(NOW) - 10)
    user(checks, token)
    checks.revocations.add(Revocation(1, RevokedKind.USER, "u1", NOW, NOW + 600))
    with pytest.raises(TokenRevokedError):
        user(checks, token)


def test_known_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, _ = verifier(KEY)
    user(checks, token := make_token("u1"))
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(TokenExpiredError):
        user(checks, token)


def test_oldest_goes_first() -> None:
    remembered = RememberedTokens(capacity=10_000)
    tokens = [f"{number:04}" + "x" * 500 for number in range(50)]
    for token in tokens:
        remembered.keep(token, KEY, Principal(token, {"x": "x" * 2000}, NOW + 60))
    held = [token for token in tokens if remembered.user_of(token, [KEY], NOW)]
    assert held == tokens[-3:]
    remembered.keep("y" * (LONGEST_KEPT + 1), KEY, Principal("y", {}, NOW + 60))
    assert remembered.user_of("y" * (LONGEST_KEPT + 1), [KEY], NOW) is None
    assert remembered.user_of(tokens[-1], [KEY], NOW)


def test_claims_count_by_memory() -> None:
    remembered = RememberedTokens(capacity=1_000_000)
    for number in range(50):
        claims: dict[str, object] = {"x": [[] for _ in range(2000)]}  # 6 kB in a token, 128 kB here
        remembered.keep(str(number), KEY, Principal("u", claims, NOW + 60))
    assert 1 < sum(remembered.user_of(str(number), [KEY], NOW) is not None for number in range(50)) < 9
