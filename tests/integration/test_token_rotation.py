"""The endpoint with keys from an issuer's server, as a service config names them: rotation, failure, attacks."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.auth.fetch import CheckedNetwork
from headwater.api.auth.key_ring import KeyRing
from headwater.cli.api import key_source
from headwater.cli.config import load_config
from headwater.cli.metrics import metrics_of
from headwater.config import ConfigSource
from tests.support.fix_api import Endpoint, running
from tests.support.jwks_server import JwksServer, certificate, jwks_server
from tests.support.memory_store import MemoryStore
from tests.support.quiet_http import send_answer
from tests.support.rsocket_client import requester
from tests.support.signers import Signer, signer
from tests.support.waiting import wait_until

SECRET = "super-secret-jwt-token-with-at-least-32-characters-long"
Start = Callable[..., Endpoint]


@pytest.fixture
def issuer() -> Iterator[JwksServer]:
    with jwks_server(signer()) as server:
        yield server


@pytest.fixture
def start(start_endpoint: Start, memory_store: MemoryStore, tmp_path: Path) -> Start:
    """Starts an endpoint with this `client_auth`."""

    def start(source: str = "db.example.org", **client_auth: object) -> Endpoint:
        uri = f"postgresql://u:p@{source}/d"
        whole = {
            "replication": {"connections": [{"uri": uri}]},
            "client_auth": {"audience": ["app"], **client_auth},
            "upload": {"role": "app_user", "tables": {"notes": {}}},
        }
        (tmp_path / "headwater.json").write_text(json.dumps(whole))
        config = load_config(ConfigSource(path=tmp_path / "headwater.json"), {}, tmp_path)
        auth = config.auth
        return start_endpoint(memory_store, keys=key_source(auth), audience=auth.audience, upload=config.upload)

    return start


def ask(endpoint: Endpoint, token: str) -> httpx.Response:
    headers = {"authorization": f"Token {token}"}
    return endpoint.http.get("/write-checkpoint2.json", params={"client_id": "c1"}, headers=headers)


def accepts(endpoint: Endpoint, token: str) -> bool:
    answer = ask(endpoint, token)
    assert answer.status_code in {200, 401, 503}, answer.text
    return answer.status_code == 200


def fails(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b"", 503)


def test_rotation_is_unnoticed(issuer: JwksServer, start: Start) -> None:
    endpoint = start(jwks_uri=issuer.url())
    for number in range(2, 7):
        assert accepts(endpoint, issuer.published[-1].token())
        issuer.published = [*issuer.published[-1:], signer("ES256", f"k{number}")]
        assert all(accepts(endpoint, each.token()) for each in reversed(issuer.published))
    assert not accepts(endpoint, signer().token()), "the first key is gone"
    assert len(issuer.asked) <= 8


def test_keys_are_fetched_at_start(issuer: JwksServer, start: Start) -> None:
    start(jwks_uri=issuer.url())
    wait_until(lambda: issuer.asked, "the keys to be fetched")


class Watched(KeyRing):
    """Keys that remember what became of them."""

    def __init__(self) -> None:
        super().__init__(())
        self.life: list[str] = []

    def start(self) -> None:
        self.life.append("started")

    async def close(self) -> None:
        self.life.append("closed")


def test_keys_are_refreshed_while_running(memory_store: MemoryStore) -> None:
    keys = Watched()
    with running(memory_store, keys=keys):
        assert keys.life == ["started"]
    assert keys.life == ["started", "closed"]


def test_new_key_is_fetched_once(issuer: JwksServer, start: Start) -> None:
    endpoint = start(jwks_uri=issuer.url())
    assert accepts(endpoint, signer().token())
    before = len(issuer.asked)
    issuer.published = [signer(), signer("RS256", "k2")]
    slow = threading.Event()

    def slowly(request: BaseHTTPRequestHandler) -> None:
        slow.wait(2)
        send_answer(request, json.dumps({"keys": [each.jwk() for each in issuer.published]}).encode())

    issuer.answer = slowly
    answers: list[bool] = []
    devices = [
        threading.Thread(target=lambda n=n: answers.append(accepts(endpoint, signer("RS256", "k2").token(f"u{n}"))))
        for n in range(20)
    ]
    for device in devices:
        device.start()
    slow.set()
    for device in devices:
        device.join(60)
    assert answers == [True] * 20
    assert len(issuer.asked) - before <= 2


def test_known_keys_work_while_issuer_fails(issuer: JwksServer, start: Start) -> None:
    endpoint = start(jwks_uri=issuer.url())
    assert accepts(endpoint, signer().token())
    issuer.answer = fails
    new = signer("RS256", "k2")
    issuer.published = [signer(), new]
    refused = ask(endpoint, new.token())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "PSYNC_S2204")
    assert refused.headers["retry-after"] == "5"
    app: Any = endpoint.server.config.app
    (told,) = app.endpoint.settings.keys.unfetched()
    assert (told.address, told.error.where) == (issuer.url(), f"{issuer.url()}: it answered 503")
    assert b"headwater_jwks_failing_seconds 0.0\n" not in metrics_of(app)
    assert str(issuer.port) not in refused.text
    assert accepts(endpoint, signer().token())
    issuer.answer = None
    assert accepts(endpoint, new.token())
    assert b"headwater_jwks_failing_seconds 0.0\n" in metrics_of(app)


def test_keys_come_later_when_issuer_starts_later(issuer: JwksServer, start: Start) -> None:
    issuer.answer = fails
    endpoint = start(jwks_uri=issuer.url())
    assert not accepts(endpoint, signer().token())
    issuer.answer = None
    assert accepts(endpoint, signer().token())


def test_keys_of_several_sources(issuer: JwksServer, start: Start) -> None:
    inline, other = signer("Ed25519", "inline"), signer("ES512", "other")
    with jwks_server(other) as second:
        endpoint = start(jwks_uri=[issuer.url(), second.url()], jwks={"keys": [inline.jwk()]})
        assert all(accepts(endpoint, each.token()) for each in (signer(), other, inline))


def test_refused_issuer_is_never_asked(issuer: JwksServer, start: Start) -> None:
    endpoint = start(jwks_uri=issuer.url(), jwks_reject_ip_ranges=["local"])
    refused = ask(endpoint, signer().token()).json()["error"]
    assert refused["code"] == "PSYNC_S2203"
    assert issuer.asked == []


@pytest.fixture
def hosted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JwksServer]:
    """A server that the host name of the parameter leads to."""
    name = request.param
    tls, authority = certificate(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    connect = CheckedNetwork.connect_tcp
    with jwks_server(tls=tls) as server:

        async def connect_here(network: CheckedNetwork, host: str, port: int, *more: Any, **options: Any) -> object:
            assert (host, port) == (name, 443)
            return await connect(network, "127.0.0.1", server.port, *more, **options)

        monkeypatch.setattr(CheckedNetwork, "connect_tcp", connect_here)
        yield server


def of_supabase(issuer: Signer, sub: str = "b3c1a4f0-0000-4000-8000-000000000001", **claims: object) -> str:
    """A token in the shape of Supabase Auth's."""
    shape: dict[str, Any] = {
        "aud": "authenticated",
        "role": "authenticated",
        "iss": "https://abcdefgh.supabase.co/auth/v1",
        "email": "ann@example.org",
        "phone": "",
        "app_metadata": {"provider": "email", "providers": ["email"]},
        "user_metadata": {},
        "aal": "aal1",
        "amr": [{"method": "password", "timestamp": 1}],
        "session_id": "5b9f1d0e-0000-4000-8000-000000000002",
        "is_anonymous": False,
    }
    return issuer.token(sub, **{**shape, **claims})


def test_supabase_tokens(start: Start) -> None:
    endpoint = start(supabase=True, supabase_jwt_secret=SECRET)
    legacy = Signer("HS256", SECRET.encode(), "h5cXkq9y5jHqxu2k")  # they have a kid that nobody publishes
    assert accepts(endpoint, of_supabase(legacy))
    assert accepts(endpoint, of_supabase(Signer("HS256", SECRET.encode(), None)))
    assert not accepts(endpoint, of_supabase(legacy, aud="app"))
    assert not accepts(endpoint, of_supabase(Signer("HS256", base64.b64encode(SECRET.encode()), None)))


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
@pytest.mark.parametrize("hosted", ["abcdefgh.supabase.co"], indirect=True)
def test_supabase_keys_are_found(hosted: JwksServer, start: Start, kind: str) -> None:
    project = signer(kind, "project")
    hosted.published = [project]
    endpoint = start("db.abcdefgh.supabase.co", supabase=True)
    assert accepts(endpoint, of_supabase(project))
    now = int(time.time())
    assert accepts(endpoint, of_supabase(project, iat=now - 60, exp=now + 7 * 86_400))
    assert ask(endpoint, project.token()).json()["error"]["code"] == "PSYNC_S2105"


def of_firebase(issuer: Signer, **claims: object) -> str:
    """A token in the shape of Firebase Authentication's."""
    shape: dict[str, Any] = {
        "iss": "https://securetoken.google.com/my-project",
        "aud": "my-project",
        "auth_time": 1_700_000_000,
        "user_id": "Zx8Yw7Vu6Ts5Rq4Po3Nm2Lk1",
        "email": "ann@example.org",
        "firebase": {"identities": {"email": ["ann@example.org"]}, "sign_in_provider": "password"},
    }
    return issuer.token("Zx8Yw7Vu6Ts5Rq4Po3Nm2Lk1", **{**shape, **claims})


@pytest.mark.parametrize("hosted", ["www.googleapis.com"], indirect=True)
def test_firebase_tokens(hosted: JwksServer, start: Start) -> None:
    hosted.published = [project := signer("RS256", "firebase")]
    endpoint = start(firebase="my-project", audience=["app"])
    assert accepts(endpoint, of_firebase(project))
    for other in ("another-project", "app"):  # whoever makes a project of this name has Firebase sign for it
        refused = ask(endpoint, of_firebase(project, aud=other)).json()["error"]
        assert (refused["code"], refused["details"]) == ("PSYNC_S2105", "accepted: my-project")


def test_configured_key(start: Start) -> None:
    rsa = signer("RS256", "main")
    endpoint = start(jwks={"keys": [rsa.jwk()]})
    assert accepts(endpoint, rsa.token())
    assert not accepts(endpoint, Signer("RS256", signer("RS256", "x").private, "main").token())


ATTACKS: dict[str, tuple[Callable[[], str], str]] = {
    "another key": (lambda: signer("RS256", "x").token(header={"kid": "k1"}), "PSYNC_S2101"),
    "expired": (lambda: signer().token(iat=1_700_000_000, exp=1_700_000_600), "PSYNC_S2103"),
    "too long a life": (lambda: signer().token(iat=1_700_000_000, exp=4_000_000_000), "PSYNC_S2104"),
    "another audience": (lambda: signer().token(aud="other"), "PSYNC_S2105"),
    "no token": (lambda: "a b", "PSYNC_S2106"),
}


@pytest.mark.parametrize("attack", ATTACKS)  # one of each code; the others are tried on the verifier
def test_attacks_are_refused_by_every_route(issuer: JwksServer, start: Start, attack: str) -> None:
    make, code = ATTACKS[attack]  # tokens are made late, so that none ends before its test
    token = make()
    endpoint = start(jwks_uri=issuer.url())
    assert accepts(endpoint, signer().token())
    headers = {"authorization": f"Token {token}"}
    for path in ("/sync/stream", "/sync/checkpoint-request", "/upload"):
        answer = endpoint.http.post(path, json={}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code), path
    assert ask(endpoint, token).json()["error"]["code"] == code
    with requester(str(endpoint.http.base_url)) as websocket:
        websocket.set_up(token)
        assert websocket.receive().error[1].startswith(f"[{code}] ")
