"""Keys that are fetched from an issuer's server, over real connections: what is accepted there, and what is not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from headwater.api.auth import fetch
from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import LARGEST, AddressRules, JwksClient, KeySet
from headwater.api.auth.keys import KeyAddress
from tests.support.fix_service import free_port
from tests.support.jwks_server import JwksServer, certificate, jwks_server
from tests.support.quiet_http import send_answer
from tests.support.signers import signer


@pytest.fixture
def issuer() -> Iterator[JwksServer]:
    with jwks_server(signer()) as server:
        yield server


def fetched(url: str, rules: AddressRules | None = None) -> KeySet:
    return asyncio.run(JwksClient(KeyAddress(url), rules or AddressRules()).fetch())


def refusal(url: str, rules: AddressRules | None = None) -> JwksError:
    with pytest.raises(JwksError) as raised:
        fetched(url, rules)
    assert "localhost" not in raised.value.what + raised.value.fix, "the client is not told where keys are"
    return raised.value


def test_jwks_request_headers(issuer: JwksServer) -> None:
    assert [key.kid for key in fetched(issuer.url() + "?secret=1").keys] == ["k1"]
    (headers,) = issuer.asked
    assert headers["accept"] == "application/json"
    assert headers["host"] == f"localhost:{issuer.port}"


def moved(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b"", 302, Location="http://127.0.0.1/elsewhere")


def failing(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, json.dumps({"keys": [signer().jwk()]}).encode(), 503)


def web_page(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b"<!doctype html>")


def other_json(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b'{"error": "not here"}')


def list_only(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b"[]")


def deep(request: BaseHTTPRequestHandler) -> None:
    send_answer(request, b"[" * 100_000)


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" " * 65_536)


def cut_off(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    request.wfile.write(b'{"keys": [')


def not_http(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (moved, "it answered 302, and redirects are not followed"),
        (failing, "it answered 503"),
        (web_page, "its answer is not JSON"),
        (deep, "its answer is not JSON"),
        (other_json, "its answer has no list `keys`"),
        (list_only, "its answer has no list `keys`"),
        (endless, f"its answer has more than {LARGEST} bytes"),
        (cut_off, "peer closed connection"),
        (not_http, ""),
    ],
)
def test_bad_jwks_is_refused_and_logged(issuer: JwksServer, answer: Any, said: str) -> None:
    issuer.answer = answer
    error = refusal(issuer.url() + "?secret=1")
    assert (error.code, error.what) == ("PSYNC_S2204", "the keys of tokens can't be fetched")
    assert error.where.startswith(f"http://localhost:{issuer.port}/keys: ")
    assert said in error.where
    assert "secret" not in str(error)
    assert len(issuer.asked) == 1


@pytest.mark.parametrize("begins", [True, False], ids=["drips", "is silent"])
def test_slow_jwks_server_times_out(issuer: JwksServer, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    def slowly(request: BaseHTTPRequestHandler) -> None:
        if begins:
            request.send_response(200)
            request.end_headers()
        while not issuer.let_go.wait(0.02):
            if begins:
                request.wfile.write(b" ")

    issuer.answer = slowly
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    with pytest.raises(JwksError, match="not complete within 0 s" if begins else "in time"):
        asyncio.run(JwksClient(KeyAddress(issuer.url()), AddressRules()).fetch(0.5))


def test_missing_jwks_server_is_named() -> None:
    assert "PSYNC_S2204" in str(refusal(f"http://localhost:{free_port()}/keys"))
    assert "the host name can't be resolved" in refusal("http://nowhere.invalid/keys").where


def test_refused_address_is_never_connected(issuer: JwksServer) -> None:
    for host in ("localhost", "127.0.0.1"):
        error = refusal(issuer.url(host), AddressRules(local=True))
        assert (error.code, error.where) == ("PSYNC_S2203", host)
    assert issuer.asked == []


def test_dns_rebinding_leads_nowhere(issuer: JwksServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["127.0.0.2", *["127.0.0.1"] * 20]

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> object:
        assert host == "rebound.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    rules = AddressRules((ip_network("127.0.0.1"),))
    assert refusal(issuer.url("rebound.example"), rules).code == "PSYNC_S2204"
    assert issuer.asked == []
    assert len(answers) == 20
    assert refusal(issuer.url("rebound.example"), rules).code == "PSYNC_S2203"


def test_other_address_is_tried(issuer: JwksServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(_: str, port: int, *__: object, **___: object) -> object:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert len(fetched(issuer.url("two.example")).keys) == 1
    assert issuer.asked[0]["host"] == f"two.example:{issuer.port}"


def test_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, authority = certificate(tmp_path, "localhost")
    with jwks_server(signer(), tls=tls) as issuer:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(issuer.url()).where
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert len(fetched(issuer.url()).keys) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(issuer.url("127.0.0.1")).where
        assert len(issuer.asked) == 1
