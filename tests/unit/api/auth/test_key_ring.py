"""Keys from addresses: how long they are used, when they are looked for, and who waits. The clock is the test's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import pytest

from headwater.api.auth import key_ring
from headwater.api.auth.errors import AddressRefusedError, AuthError, JwksError
from headwater.api.auth.fetch import KeySet, read_set
from headwater.api.auth.key_ring import KEEP_SECONDS, MOST_LOOKS, KeyRing, RemoteKeys
from headwater.api.auth.keys import KeyAddress, parse_key
from headwater.api.auth.verify import Verifier
from headwater.api.errors import ApiError
from tests.support.fix_api import jwk, make_token
from tests.support.signers import Signer, signer


class Issuer:
    """What an address has, and how often it was asked."""

    def __init__(self, *published: Signer) -> None:
        self.published = list(published)
        self.failure: Exception | None = None
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def fetch(self) -> KeySet:
        self.asked += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return KeySet(tuple(parse_key(each.jwk()) for each in self.published))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def keys_of(issuer: Issuer, clock: Clock | None = None) -> RemoteKeys:
    return RemoteKeys(issuer.fetch, "https://issuer.example/jwks", now=clock or Clock(), jitter=lambda: 1.0)


def story(told: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that lives in an event loop."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(told(), 30))

    run.__name__, run.__doc__ = told.__name__, told.__doc__
    return run


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come to that")


async def refused(verifier: Verifier, token: str) -> ApiError:
    with pytest.raises((AuthError, JwksError)) as raised:
        await verifier.verify(token)
    return raised.value


def verifier_of(*sources: RemoteKeys) -> Verifier:
    return Verifier(KeyRing((), sources), frozenset({"app"}))


@story
async def test_first_token_waits_for_the_keys() -> None:
    issuer = Issuer(signer())
    verifier = verifier_of(keys_of(issuer))
    assert (await verifier.verify(signer().token())).user_id == "u1"
    issuer.answers.clear()
    for _ in range(3):
        assert (await verifier.verify(signer().token())).user_id == "u1"
    assert issuer.asked == 1


@story
async def test_new_key_is_found() -> None:
    old, new = signer(), signer("RS256", "k2")
    issuer = Issuer(old)
    verifier = verifier_of(keys_of(issuer))
    await verifier.verify(old.token())
    issuer.published = [old, new]
    assert (await verifier.verify(new.token())).user_id == "u1"
    assert (await verifier.verify(old.token())).user_id == "u1"
    assert issuer.asked == 2


@story
async def test_withdrawn_key() -> None:
    old, new = signer(), signer("RS256", "k2")
    issuer = Issuer(old)
    verifier = verifier_of(keys_of(issuer))
    await verifier.verify(old.token())
    issuer.published = [new]
    await verifier.verify(new.token())
    assert "no configured key fits the token" in (await refused(verifier, old.token())).what


@story
async def test_fetches_for_unknown_keys_are_limited() -> None:
    issuer, clock = Issuer(signer()), Clock()
    verifier = verifier_of(keys_of(issuer, clock))
    junk = signer("RS256", "junk").token()
    for _ in range(MOST_LOOKS):
        assert (await refused(verifier, junk)).code == "PSYNC_S2101"
    assert issuer.asked == MOST_LOOKS
    waiting = [asyncio.create_task(refused(verifier, junk)) for _ in range(50)]
    await asyncio.sleep(0)
    assert (await verifier.verify(signer().token())).user_id == "u1"
    assert issuer.asked == MOST_LOOKS
    assert {error.code for error in await asyncio.gather(*waiting)} == {"PSYNC_S2101"}
    assert issuer.asked == MOST_LOOKS + 1


@story
async def test_new_key_among_unknown_ones() -> None:
    issuer, rotated = Issuer(signer()), signer("RS256", "rotated")
    keys = RemoteKeys(issuer.fetch, "https://issuer.example/jwks")
    verifier, over = verifier_of(keys), asyncio.Event()

    async def flood(stranger: int) -> None:
        junk = signer("RS256", f"junk{stranger}").token()
        while not over.is_set():
            await refused(verifier, junk)

    strangers = [asyncio.create_task(flood(number)) for number in range(5)]
    await until(lambda: issuer.asked == MOST_LOOKS)
    issuer.published.append(rotated)
    assert (await verifier.verify(rotated.token())).user_id == "u1"
    assert issuer.asked <= MOST_LOOKS + 2
    over.set()
    await asyncio.gather(*strangers)


@story
async def test_shared_secret_is_never_looked_up() -> None:
    issuer = Issuer(signer())
    verifier = Verifier(KeyRing([parse_key(jwk())], [keys_of(issuer)]), frozenset({"app"}))
    assert (await verifier.verify(make_token(aud="app"))).user_id == "u1"
    await refused(verifier, make_token(alg="HS512", aud="app", header={"kid": "unknown"}))
    assert issuer.asked == 0


@story
async def test_bad_signature_fetches_nothing() -> None:
    issuer = Issuer(signer())
    verifier = verifier_of(keys_of(issuer))
    await verifier.verify(signer().token())
    assert "signature" in (await refused(verifier, signer("RS256", "k2").token(header={"kid": "k1"}))).what
    assert issuer.asked == 1


@story
async def test_waiting_requests_share_a_fetch() -> None:
    issuer = Issuer(signer())
    issuer.answers.clear()
    verifier = verifier_of(keys_of(issuer))
    waiting = [asyncio.create_task(verifier.verify(signer().token(f"u{n}"))) for n in range(50)]
    gone = waiting.pop()
    await until(lambda: issuer.asked > 0)
    gone.cancel()
    issuer.answers.set()
    assert [user.user_id for user in await asyncio.gather(*waiting)] == [f"u{n}" for n in range(49)]
    assert issuer.asked == 1


def test_wait_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "WAIT_SECONDS", 0.01)

    @story
    async def told() -> None:
        issuer = Issuer(signer())
        issuer.answers.clear()
        keys = keys_of(issuer)
        error = await refused(verifier_of(keys), signer().token())
        assert (error.code, error.what) == ("PSYNC_S2204", "the keys of tokens are still being fetched")
        issuer.answers.set()
        assert (await verifier_of(keys).verify(signer().token())).user_id == "u1"
        assert issuer.asked == 1

    told()


@story
async def test_keys_are_kept_for_an_hour() -> None:
    issuer, clock = Issuer(signer()), Clock()
    keys = keys_of(issuer, clock)
    verifier = verifier_of(keys)
    await verifier.verify(signer().token())
    issuer.failure = JwksError("the keys of tokens can't be fetched", "https://issuer.example: it answered 503")
    clock.now += KEEP_SECONDS
    assert (await verifier.verify(signer().token())).user_id == "u1"
    assert (await refused(verifier, signer("RS256", "k2").token())).code == "PSYNC_S2204"
    assert (await verifier.verify(signer().token())).user_id == "u1"
    clock.now += 1.0
    error = await refused(verifier, signer().token())
    assert error.code == "PSYNC_S2204"
    assert "issuer.example" not in error.what + error.fix
    issuer.failure = None
    assert (await verifier.verify(signer().token())).user_id == "u1"


@story
async def test_reason_reaches_every_client() -> None:
    issuer = Issuer()
    issuer.failure = AddressRefusedError("the host of the keys is at an address that is refused", "host")
    verifier = verifier_of(keys_of(issuer))
    errors = [await refused(verifier, signer().token()) for _ in range(2 * MOST_LOOKS)]
    assert {error.code for error in errors} == {"PSYNC_S2203"}
    assert len(set(map(id, errors))) == len(errors)
    assert issuer.asked == MOST_LOOKS


def test_bug_in_the_fetch(caplog: pytest.LogCaptureFixture) -> None:
    @story
    async def told() -> None:
        issuer = Issuer(signer())
        issuer.failure = ZeroDivisionError()
        verifier = verifier_of(keys_of(issuer))
        assert (await refused(verifier, signer().token())).code == "PSYNC_S2204"
        issuer.failure = None
        assert (await verifier.verify(signer().token())).user_id == "u1"

    told()
    assert "fetching keys failed unexpectedly" in caplog.text


@story
async def test_failing_address_beside_a_good_one() -> None:
    good, bad = Issuer(signer()), Issuer()
    bad.failure = JwksError("the keys of tokens can't be fetched")
    verifier = verifier_of(keys_of(bad), keys_of(good))
    assert (await verifier.verify(signer().token())).user_id == "u1"
    assert (await refused(verifier, signer("RS256", "k2").token())).code == "PSYNC_S2204"  # it may be one of `bad`
    good.failure = bad.failure
    assert (await refused(verifier, signer("RS256", "k2").token())).code == "PSYNC_S2204"


@story
async def test_background_fetch() -> None:
    issuer = Issuer(signer())
    keys = keys_of(issuer)
    pauses: list[float] = []

    def at_once() -> float:
        pauses.append(0.0)
        return 0.0

    keys.pause = at_once  # type: ignore[method-assign]
    keys.start()
    keys.start()
    await until(lambda: len(pauses) >= 3)
    issuer.published = [signer("RS256", "k2")]
    await until(lambda: [key.kid for key in keys.known()] == ["k2"])
    await keys.close()
    asked = issuer.asked
    for _ in range(20):
        await asyncio.sleep(0)
    assert issuer.asked == asked


@story
async def test_close_while_a_fetch_hangs() -> None:
    issuer = Issuer(signer())
    issuer.answers.clear()
    keys = keys_of(issuer)
    keys.start()
    await until(lambda: issuer.asked > 0)
    await keys.close()


@story
async def test_pause_grows_after_failures() -> None:
    issuer = Issuer(signer())
    keys = keys_of(issuer)
    issuer.failure = JwksError("the keys of tokens can't be fetched")
    pauses = []
    for _ in range(9):
        with pytest.raises(JwksError):
            await keys.look_again()
        pauses.append(keys.pause())
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    issuer.failure = None
    await keys.look_again()
    assert keys.pause() == 300


def test_pause_jitter() -> None:
    async def nothing() -> KeySet:
        return KeySet(())

    assert RemoteKeys(nothing, "", jitter=lambda: 0.0).pause() == 270
    assert RemoteKeys(nothing, "", jitter=lambda: 1.0).pause() == 300


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @story
    async def told() -> None:
        issuer = Issuer(signer())
        keys = keys_of(issuer)
        await keys.look_again()
        await keys.look_again()
        issuer.failure = JwksError("the keys of tokens can't be fetched", "https://issuer.example: it answered 503")
        with pytest.raises(JwksError):
            await keys.look_again()
        issuer.failure, issuer.published = None, []
        await keys.look_again()

    told()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "keys fetched"),
        ("WARNING", "the keys of tokens can't be fetched"),
        ("WARNING", "keys fetched"),
    ]
    assert '"kids": ["k1"]' in caplog.text
    assert '"code": "PSYNC_S2204", "reason": "https://issuer.example: it answered 503", "keys_kept": 1' in caplog.text
    assert '"since": "2' in caplog.text


def test_read_set() -> None:
    good, curve = signer(), signer("ES256", None)
    listed: list[Mapping[str, object]] = [
        good.jwk(),
        jwk(kid="secret"),
        signer("RS256", "enc").jwk(use="enc"),
        signer("RS256", "ops").jwk(use=None, key_ops=["encrypt"]),
        signer("RS256", "pss").jwk(alg="ES256"),
        signer("RS256", "list").jwk(alg=["RS256"]),
        {"kty": "AKP", "kid": "new", "alg": "ML-DSA-44"},
        {"kty": ["RSA"], "kid": "odd"},
        {"kid": "none"},
        {"kty": "RSA", "kid": "short", "n": "AQAB", "e": "AQAB"},
        good.jwk(kid=7),
        curve.jwk(use=None, key_ops=["verify"]),
    ]
    found = read_set(listed, KeyAddress("https://x", frozenset({"authenticated"}), 5))
    assert [key.kid for key in found.keys] == ["k1", None]
    assert len(found.ignored) == len(listed) - 2
    assert {(key.audience, key.max_lifetime) for key in found.keys} == {(frozenset({"authenticated"}), 5)}
