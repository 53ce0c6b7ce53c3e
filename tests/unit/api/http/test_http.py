"""Everything about the endpoint that is no stream: errors, probes, CORS, limits."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace

import pytest

from headwater.api import app
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.error_answers import error_response
from headwater.api.errors import ApiError
from headwater.api.streams import hub
from headwater.codes import CODES
from headwater.storage.contract.store import StoreUnreachableError
from headwater.sync.formats import Bson, Ndjson
from tests.support.fix_api import AUDIENCE, RULES, Endpoint, PlayedHead, jwk, make_token
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint

JSON = "application/json"


def error_of(endpoint: Endpoint, method: str, path: str, **request: object) -> dict[str, object]:
    response = endpoint.http.request(method, path, **request)  # type: ignore[arg-type]
    assert response.headers["content-type"] == JSON
    error: dict[str, object] = response.json()["error"]
    assert error["status"] == response.status_code
    assert "Traceback" not in response.text
    return error


def probe(endpoint: Endpoint, name: str) -> int:
    return endpoint.http.get(f"/probes/{name}").status_code


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "body has the wrong type"),
        (b"[" * 40_000, "not valid JSON"),
        (b"[" * 100_000, "more than 42,000 arrays and objects"),
        (b'{"client_id":"a\\u0000"}', "NUL"),
        (b'{"buckets":[{"name":"a","after":"x"}]}', "not an op id"),
    ],
)
def test_malformed_body_is_refused(endpoint: Endpoint, body: bytes, said: str) -> None:
    token = {"authorization": f"Token {make_token()}"}
    error = error_of(endpoint, "POST", "/sync/stream", content=body, headers=token)
    assert (error["status"], error["code"]) == (400, "PSYNC_S2001")
    assert said in str(error["description"])


def test_unknown_code_is_an_error_of_the_service() -> None:
    assert error_response(ApiError("none", code="HW_6999")).status_code == 500


def test_missing_token_is_refused_before_the_body(endpoint: Endpoint) -> None:
    with socket.create_connection(endpoint.address, 10) as connection:
        connection.sendall(b"POST /sync/stream HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
        assert b" 401 " in connection.recv(4096)


@pytest.mark.parametrize(("method", "path"), [("POST", "/sync/stream"), ("GET", "/write-checkpoint2.json")])
@pytest.mark.parametrize(
    ("headers", "code", "what"),
    [({}, "PSYNC_S2106", ""), ({"authorization": "Token nonsense"}, "PSYNC_S2101", "the token is not a JWT")],
)
def test_bad_token_is_401(
    endpoint: Endpoint, method: str, path: str, headers: dict[str, str], code: str, what: str
) -> None:
    error = error_of(endpoint, method, path, content=b"{}" if method == "POST" else None, headers=headers)
    assert (error["status"], error["code"]) == (401, code)
    assert what in ("", error["description"])


def test_head(endpoint: Endpoint) -> None:
    for path in ("/probes/readiness", "/api/admin/v1/status", "/nowhere"):
        got, head = endpoint.http.get(path), endpoint.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]


def test_head_creates_no_write_checkpoint(endpoint: Endpoint) -> None:
    headers = {"authorization": f"Token {make_token()}"}
    head = endpoint.http.head("/write-checkpoint2.json", headers=headers)
    assert (head.status_code, head.headers["allow"]) == (405, "GET")
    assert endpoint.head.asked == 0
    assert endpoint.write_checkpoint().json() == {"data": {"write_checkpoint": "1"}}


def test_unknown_route_is_404_and_wrong_method_405(endpoint: Endpoint) -> None:
    slashes = (("POST", "/sync/stream/"), ("GET", "/write-checkpoint2.json/"), ("GET", "/probes/startup/"))
    for method, path in (("GET", "/sync/streams"), *slashes):
        error = error_of(endpoint, method, path)
        assert (error["status"], error["code"]) == (404, "PSYNC_S2002")
    assert error_of(endpoint, "GET", "/sync/stream")["status"] == 405


@pytest.mark.parametrize(
    ("path", "kind", "status", "code"),
    [
        *product(
            ("/sync/stream", "/sync/checkpoint-request"),
            ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
            (415,),
            ("PSYNC_S2004",),
        ),
        *product(
            ("/sync/stream",),
            ("application/json", "Application/JSON; charset=utf-8", ""),
            (401,),  # it is read, and lacks a token
            ("PSYNC_S2106",),
        ),
    ],
)
def test_content_type(endpoint: Endpoint, path: str, kind: str, status: int, code: str) -> None:
    error = error_of(endpoint, "POST", path, content=b"{}", headers={"content-type": kind})
    assert (error["status"], error["code"]) == (status, code)


@pytest.mark.parametrize(
    ("accept", "comes"),
    [
        ("application/vnd.powersync.bson-stream;q=0.9,application/x-ndjson;q=0.8", Ndjson.media_type),
        ("application/vnd.powersync.bson-stream, */*;q=0.1", Ndjson.media_type),
        ("*/*", Ndjson.media_type),
        ("text/html", Ndjson.media_type),
        ("application/vnd.powersync.bson-stream", Bson.media_type),
        ("application/vnd.powersync.bson-stream, application/x-ndjson;q=0", Bson.media_type),
    ],
)
def test_bson_only_where_nothing_else_is_accepted(endpoint: Endpoint, accept: str, comes: str) -> None:
    headers = {"authorization": f"Token {make_token()}", "accept": accept}
    with endpoint.http.stream("POST", "/sync/stream", json={}, headers=headers) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, comes)


def preflight(endpoint: Endpoint, path: str, **more: str) -> Mapping[str, str]:
    """The headers of the answer to a browser that may POST there."""
    named = {f"access-control-request-{name.replace('_', '-')}": value for name, value in more.items()}
    headers = {"origin": "https://app.example.org", "access-control-request-method": "POST", **named}
    answer = endpoint.http.options(path, headers=headers)
    assert answer.status_code == 200
    return answer.headers


def test_cors_allows_any_origin(endpoint: Endpoint) -> None:
    headers = preflight(endpoint, "/sync/stream", headers="authorization, content-type, x-user-agent, user-agent")
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-max-age"] == "3600"
    allowed = {name.strip().lower() for name in headers["access-control-allow-headers"].split(",")}
    assert {"authorization", "content-type", "x-user-agent", "user-agent"} <= allowed
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("path", ["/sync/stream", "/upload", "/write-checkpoint2.json", "/sync/checkpoint-request"])
def test_cors_allows_the_headers_of_any_tool(endpoint: Endpoint, path: str) -> None:
    asked = "authorization,baggage,content-type,ngrok-skip-browser-warning,sentry-trace,traceparent,x-datadog-trace-id"
    headers = preflight(endpoint, path, headers=asked)
    assert headers["access-control-allow-headers"] == asked, "`*` would not allow `authorization`"
    assert "Access-Control-Request-Headers" in headers["vary"]


def test_cors_allows_private_networks(endpoint: Endpoint) -> None:
    assert preflight(endpoint, "/sync/stream", private_network="true")["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("scheme", ["bearer", "TOKEN ", "Bearer   "])
@pytest.mark.parametrize("path", ["/sync/stream", "/write-checkpoint2.json"])
def test_authorization_scheme_in_any_case(endpoint: Endpoint, path: str, scheme: str) -> None:
    method = "GET" if path.endswith(".json") else "POST"
    headers = {"authorization": f"{scheme} {make_token()}"}
    with endpoint.http.stream(method, path, json={}, headers=headers) as response:
        assert response.status_code == 200


def test_cors_headers_on_refusals(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    def broken(_: str) -> None:
        raise RuntimeError

    memory_store.write_checkpoint = broken  # type: ignore[method-assign, assignment]
    headers = {"origin": "https://app.example.org"}
    authorized = {**headers, "authorization": f"Token {make_token()}"}
    answers = [
        endpoint.http.post("/sync/stream", json={}, headers=headers),
        endpoint.http.post("/sync/stream", json={}, headers=authorized),
        endpoint.http.post("/sync/stream", content=b" " * (1024 * 1024 + 1), headers=authorized),
        endpoint.http.get("/sync/stream", headers=headers),
        endpoint.http.get("/nowhere", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [401, 500, 413, 405, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-expose-headers"] == "Content-Type, Retry-After, X-Request-Id"


def test_probes_answer_without_a_token(endpoint: Endpoint) -> None:
    for name in ("startup", "readiness", "liveness"):
        response = endpoint.http.get(f"/probes/{name}")
        assert response.status_code == 200
        assert response.json()["ready"] is True
        assert response.json()["started"] is True
        assert response.json()["touched_at"].endswith("Z")


def test_readiness_needs_a_sync_config_and_a_snapshot(start_endpoint: StartEndpoint) -> None:
    store = MemoryStore()
    endpoint = start_endpoint(store)
    assert [probe(endpoint, name) for name in ("startup", "readiness", "liveness")] == [200, 400, 200]
    assert endpoint.http.get("/probes/readiness").json()["ready"] is False
    assert endpoint.post().status_code == 503
    store.replace_config(RULES)
    store.put("unrelated", "1")
    store.commit()
    wait_until(lambda: probe(endpoint, "readiness") == 200, "the endpoint to be ready")
    with endpoint.stream() as stream:
        stream.completed()


def test_lost_store(endpoint: Endpoint, memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise StoreUnreachableError("the store is away")

    monkeypatch.setattr(hub, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(app, "UNREAD_SECONDS", 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(memory_store, "newest", broken)
        memory_store.wake()
        wait_until(lambda: probe(endpoint, "readiness") == 400, "it to be taken out")
        assert endpoint.post().status_code == 503
        assert [probe(endpoint, name) for name in ("startup", "liveness")] == [200, 200]
    wait_until(lambda: probe(endpoint, "readiness") == 200, "it to be back")


def test_readiness_ignores_wall_clock_jumps(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    later = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
    monkeypatch.setattr(app, "time", later)
    assert endpoint.http.get("/probes/readiness").status_code == 200


@pytest.mark.parametrize("answered", [True, False])
def test_probes_setting(memory_store: MemoryStore, answered: bool) -> None:
    settings = ApiSettings(KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE}), probes=answered)
    routes = {getattr(route, "path", "") for route in create_app(settings, memory_store, PlayedHead()).routes}
    assert "/sync/stream" in routes
    assert ("/probes/readiness" in routes) is answered


def test_internal_error(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("the password is swordfish")

    memory_store.write_checkpoint = broken  # type: ignore[method-assign, assignment]
    answer = endpoint.post()
    assert answer.status_code == 500
    assert answer.json()["error"]["description"] == "Something went wrong"
    assert "swordfish" not in answer.text
    assert "swordfish" in caplog.text
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_retry_after_of_temporary_errors() -> None:
    answers = [error_response(ApiError("full", code=code)) for code, each in CODES.items() if each.status in {429, 503}]
    assert len(answers) > 5
    answers.append(error_response(StoreUnreachableError("the store is away")))
    assert [int(answer.headers["retry-after"]) > 0 for answer in answers] == [True] * len(answers)
    assert "retry-after" not in error_response(ApiError("none", code="HW_6003")).headers
