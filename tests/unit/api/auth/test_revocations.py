"""Tokens that are revoked before they expire."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

import pytest
from httpx import ASGITransport, AsyncClient

from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.errors import TokenRevokedError
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.auth.revocations import Revocations
from headwater.api.auth.verify import Principal, Verifier
from headwater.source.upload.settings import UploadSettings
from headwater.storage.contract.store import Revocation, RevokedKind, StoreUnreachableError
from tests.support.fix_admin import NOWHERE
from tests.support.fix_api import AUDIENCE, PlayedHead, jwk, make_token
from tests.support.memory_store import MemoryStore

NOW = int(time.time())


def revoked(kind: RevokedKind, value: str, since: float) -> Revocation:
    return Revocation(1, kind, value, since, since + 600)


def verifier(*held: Revocation) -> Verifier:
    return Verifier(KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE}), Revocations(held))


def accepts(checks: Verifier, token: str) -> bool:
    try:
        asyncio.run(checks.verify(token))
    except TokenRevokedError:
        return False
    return True


def test_refusal() -> None:
    with pytest.raises(TokenRevokedError) as refused:
        asyncio.run(verifier(revoked(RevokedKind.TOKEN, "t1", NOW)).verify(make_token(jti="t1")))
    assert (refused.value.code, refused.value.status) == ("PSYNC_S2101", 401)
    assert "t1" not in str(refused.value)


def test_token_is_refused_from_its_revocation_on() -> None:
    checks = verifier()
    token = make_token("u1", iat=NOW - 10, jti="t1")
    assert accepts(checks, token)
    checks.revocations.add(revoked(RevokedKind.USER, "u1", NOW - 5))
    assert not accepts(checks, token)


def test_revoked_user() -> None:
    checks = verifier(revoked(RevokedKind.USER, "u1", NOW - 5), revoked(RevokedKind.USER, "7", NOW))
    assert not accepts(checks, make_token("u1", iat=NOW - 5))
    assert accepts(checks, make_token("u1", iat=NOW - 4)), "signed in again"
    assert accepts(checks, make_token("u2", iat=NOW - 10))
    assert not accepts(checks, make_token(7, iat=NOW)), "known by the text of the id"


def in_session(claim: str, value: str) -> str:
    return make_token(session_id=value) if claim == "session_id" else make_token(sid=value)


@pytest.mark.parametrize("claim", ["session_id", "sid"])
def test_revoked_session_and_token(claim: str) -> None:
    checks = verifier(revoked(RevokedKind.SESSION, "s1", NOW - 500), revoked(RevokedKind.TOKEN, "t1", NOW - 500))
    assert not accepts(checks, in_session(claim, "s1"))
    assert accepts(checks, in_session(claim, "s2"))
    assert not accepts(checks, make_token(jti="t1"))
    assert accepts(checks, make_token(jti="s1"))
    assert accepts(checks, make_token(jti=["t1"], sid={"s": 1}))


def test_latest_revocation_counts() -> None:
    late, early = revoked(RevokedKind.USER, "u1", NOW - 5), revoked(RevokedKind.USER, "u1", NOW - 50)
    for order in ((late, early), (early, late)):
        checks = verifier(*order)
        assert len(checks.revocations) == 1
        assert not accepts(checks, make_token("u1", iat=NOW - 10))


def test_replace() -> None:
    checks = verifier(revoked(RevokedKind.USER, "u1", NOW))
    checks.revocations.replace([revoked(RevokedKind.USER, "u2", NOW)])
    assert accepts(checks, make_token("u1", iat=NOW - 1))
    assert not accepts(checks, make_token("u2", iat=NOW - 1))


def test_of() -> None:
    user = Principal("u1", {"sub": "u1", "iat": NOW - 1, "jti": "t1"}, NOW + 60)
    held = Revocations()
    assert held.of(user) is None
    revocation = revoked(RevokedKind.TOKEN, "t1", NOW)
    held.add(revocation)
    assert held.of(user) == revocation


def test_forget() -> None:
    held = Revocations([revoked(RevokedKind.USER, "u1", NOW)])
    held.forget(NOW + 3600 + 120 - 1, 3600)
    assert len(held) == 1
    held.forget(NOW + 3600 + 120, 3600)
    assert len(held) == 0


def test_no_token_before_revocations_are_read(memory_store: MemoryStore) -> None:
    newest = memory_store.newest
    memory_store.newest = unreachable  # type: ignore[method-assign]
    now = time.time()
    memory_store.revoked.append(revoked(RevokedKind.USER, "u1", now + 60))
    settings = ApiSettings(
        KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE}), upload=UploadSettings(NOWHERE, "nobody")
    )

    async def story() -> list[list[str]]:
        app = create_app(settings, memory_store, PlayedHead())
        http = AsyncClient(transport=ASGITransport(app), base_url="http://headwater")
        async with app.router.lifespan_context(app), http:
            before = [await refusal(http, user) for user in ("u1", "u2")]
            memory_store.newest = newest  # type: ignore[method-assign]
            memory_store.wake()
            while (await http.get("/probes/startup")).status_code != 200:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            return [before, [await refusal(http, user) for user in ("u1", "u2")]]

    before, after = asyncio.run(story())
    assert before == ["HW_6031", "HW_6031"]
    assert after == ["PSYNC_S2101", "HW_6103"], "the other is let in, as far as a source that is away"


def unreachable() -> NoReturn:
    raise StoreUnreachableError("the store is away")


async def refusal(http: AsyncClient, user: str) -> str:
    """The code with which an upload is refused."""
    upload = {"client_id": "phone", "transactions": [{"crud": [{"op_id": 1, "op": "PUT", "type": "notes", "id": "1"}]}]}
    answer = await http.post("/upload", json=upload, headers={"authorization": f"Token {make_token(user)}"})
    return str(answer.json()["error"]["code"])
