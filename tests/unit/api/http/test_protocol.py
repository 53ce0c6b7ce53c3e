"""What strangers send before anybody knows who they are: it is bounded in size, number and time."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.api import checkpoints
from headwater.api.http import connections
from headwater.api.http.connections import ConnectionLimiter, LimitedConfig
from headwater.api.http.protocol import MOST_CALLS, BoundedProtocol
from headwater.api.limits import HttpLimits, StreamLimits
from tests.support.fix_api import Endpoint, make_token
from tests.support.loop_turns import in_each_turn
from tests.support.memory import forget_peak, peak
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import Answer, connected
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import MEBIBYTE, StartEndpoint

GET = b"GET /probes/liveness HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /sync/stream HTTP/1.1\r\nhost: x\r\nauthorization: Token <token>\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def told(request: bytes) -> bytes:
    """With a token that is valid now."""
    return request.replace(b"<token>", make_token().encode())


def refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    assert answer.headers["access-control-allow-origin"] == "*"


def serves(endpoint: Endpoint) -> bool:
    with endpoint.stream() as stream:
        stream.completed()
    return True


# sizes


@pytest.mark.parametrize(
    ("begin", "more", "status", "code"),
    [
        (GET + b"x: ", b"y" * MEBIBYTE, 431, "HW_6022"),
        (GET, b"x: y\r\n" * 10_000, 431, "HW_6022"),
        (b"GET /", b"y" * MEBIBYTE, 414, "HW_6023"),
        (b"GET / HTTP/1.1\r\n", b"x" * MEBIBYTE, 431, "HW_6022"),
        (CHUNKED + b"1;", b"x" * MEBIBYTE, 431, "HW_6022"),
        (CHUNKED + b"1\r\nx\r\n0\r\nx: ", b"y" * MEBIBYTE, 431, "HW_6022"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"x: y\r\n" * 10_000, 431, "HW_6022"),
    ],
    ids=["value", "fields", "address", "name", "chunk extension", "trailer", "trailers"],
)
def test_endless_request_is_refused(endpoint: Endpoint, begin: bytes, more: bytes, status: int, code: str) -> None:
    before = forget_peak()
    with connected(endpoint) as connection:
        connection.send(told(begin))
        connection.send_until_over(more, most=64 * MEBIBYTE)
        refused(connection.answer(), status, code)
        assert connection.is_ended()
    assert peak() - before < 16 * MEBIBYTE
    assert serves(endpoint)


def test_header_limits(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        connection.send(GET, b"x: y\r\n" * 98, b"z: ", b"z" * 30_000, b"\r\n\r\n")
        assert connection.answer().status == 200
        connection.send(GET, b"x: y\r\n" * 100, b"\r\n")
        refused(connection.answer(), 431, "HW_6022")


def test_header_limits_are_per_request(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        for _ in range(5):
            connection.send(GET, b"z: ", b"z" * 30_000, b"\r\n\r\n")
            assert connection.answer().status == 200
            connection.send(told(POST), b"content-length: 600000\r\n\r\n", b" " * 600_000)
            assert connection.answer().status == 400
        connection.send(told(CHUNKED), b"1\r\nx\r\n" * 900, b"0\r\n\r\n")
        assert connection.answer().status == 400


@pytest.mark.parametrize(
    "sent",
    [POST + b"content-length: 1048577\r\n\r\n", CHUNKED + b"100000\r\n" + b" " * MEBIBYTE + b"\r\n1\r\n \r\n"],
    ids=["announced", "chunked"],
)
def test_body_beyond_a_mebibyte_is_refused(endpoint: Endpoint, sent: bytes) -> None:
    with connected(endpoint) as connection:
        connection.send(told(sent))
        assert connection.answer().status == 413


@pytest.mark.parametrize("path", [b"/sync/stream", b"/sync/checkpoint-request"])
def test_bodies_read_at_once_are_limited_per_user(
    memory_store: MemoryStore, start_endpoint: StartEndpoint, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_WAITING_OF_USER", 2)
    endpoint = start_endpoint(memory_store, streams=StreamLimits(10, per_user=2))

    def begun(user: str) -> bytes:
        head = f"POST %s HTTP/1.1\r\nhost: x\r\nauthorization: Token {make_token(user)}\r\ncontent-length: 20\r\n\r\n{{"
        return head.encode() % path

    with connected(endpoint) as one, connected(endpoint) as two, connected(endpoint) as other:
        one.send(begun("u1"))
        two.send(begun("u1"))
        other.send(begun("u2"))
        wait_until(lambda: _status_of(endpoint, begun("u1") + b" " * 19) == 429, "the bodies are being read")
        one.send(b" " * 19)
        assert one.answer().status == 400
        other.send(b" " * 19)
        assert other.answer().status == 400
        wait_until(lambda: _status_of(endpoint, begun("u1") + b" " * 19) == 400, "there is room again")


def _status_of(endpoint: Endpoint, request: bytes) -> int:
    with connected(endpoint) as connection:
        connection.send(request)
        return connection.answer().status


def test_trailer_is_no_header(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        begin = CHUNKED.replace(b"authorization: Token <token>\r\n", b"")
        connection.send(begin, told(b"2\r\n{}\r\n0\r\nauthorization: Token <token>\r\n\r\n"))
        assert connection.answer().error["code"] == "PSYNC_S2106"


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x02\x00"]
)
def test_malformed_request_is_400(endpoint: Endpoint, sent: bytes) -> None:
    with connected(endpoint) as connection:
        connection.send(sent)
        refused(connection.answer(), 400, "HW_6021")
        assert connection.is_ended()


# small pieces


DRIBBLE = b"1\r\n \r\n"


@pytest.mark.parametrize("head", [CHUNKED, GET + b"transfer-encoding: chunked\r\n\r\n"], ids=["read", "unread"])
def test_tiny_chunks_are_cut_off(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(connections, "LATE_SECONDS", 1.0)
    calls = in_each_turn(monkeypatch, BoundedProtocol, "on_body")
    with connected(endpoint) as connection:
        connection.send(told(head), DRIBBLE * 40_000)
        connection.read_to_the_end()
    assert endpoint.refused() == {"HW_6032": 1}
    assert calls.most <= MOST_CALLS + 4096 / len(DRIBBLE)
    assert calls.all < 10 * connections.MOST_AT_ONCE
    assert serves(endpoint)


def test_tiny_chunks_of_many_hold_up_nobody(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = in_each_turn(monkeypatch, BoundedProtocol, "on_body")
    with ExitStack() as stack:
        many = [stack.enter_context(connected(endpoint)) for _ in range(20)]
        for each in many:
            each.send(told(CHUNKED), DRIBBLE)
        wait_until(lambda: calls.all == len(many), "each to be read")
        for each in many:
            each.send(DRIBBLE * 20_000)
        assert endpoint.http.get("/probes/liveness").status_code == 200
        wait_until(lambda: calls.all >= len(many) * connections.MOST_AT_ONCE, "as much as is read at once")
        assert endpoint.http.get("/probes/liveness").status_code == 200
    assert calls.most < len(many) * 1500


@pytest.mark.parametrize(
    ("burst", "times", "sent"),
    [
        (connections.MOST_AT_ONCE, 8, CHUNKED + (b"400\r\n" + b" " * 1024 + b"\r\n") * 1000 + b"0\r\n\r\n"),
        (10, 100, POST + b"content-length: 2\r\n\r\n[]"),
    ],
    ids=["a large body in ordinary chunks", "many small bodies of a proxy"],
)
def test_ordinary_bodies_are_not_throttled(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, burst: int, times: int, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_AT_ONCE", burst)
    monkeypatch.setattr(connections, "MOST_PER_SECOND", 0.001)
    with connected(endpoint) as connection:
        for _ in range(times):
            connection.send(told(sent))
            assert connection.answer().status == 400


def test_throttled_client_goes_on(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_PER_SECOND", 1000)
    with connected(endpoint) as connection:
        connection.send(told(CHUNKED), DRIBBLE * 3 * connections.MOST_AT_ONCE, b"0\r\n\r\n", GET, b"\r\n")
        assert [connection.answer().status for _ in range(2)] == [400, 200]


@pytest.mark.parametrize("hosts", [b"", b"host: x\r\nHost: y\r\n", b"HOST: x\r\nhost: x\r\n"])
@pytest.mark.parametrize("request_line", [b"GET /probes/liveness", b"POST /sync/stream", b"OPTIONS /sync/stream"])
def test_host_header_is_required_once(endpoint: Endpoint, request_line: bytes, hosts: bytes) -> None:
    more = b"upgrade: websocket\r\nconnection: upgrade\r\n" if request_line.startswith(b"GET") else b""
    for extra in {more, b""}:
        with connected(endpoint) as connection:
            connection.send(request_line, b" HTTP/1.1\r\n", hosts, extra, b"\r\n")
            refused(connection.answer(), 400, "HW_6021")
            assert connection.is_ended()


def test_http_1_0_needs_no_host(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        connection.send(b"GET /probes/liveness HTTP/1.0\r\n\r\n")
        assert connection.answer().status == 200
    with connected(endpoint) as connection:
        connection.send(b"GET /probes/liveness HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n")
        refused(connection.answer(), 400, "HW_6021")


# time


def hurry(endpoint: Endpoint, **limits: Any) -> None:
    """Whoever connects from here on has to be quick. Connections that there are keep the limits they came in by."""
    config = endpoint.server.config
    assert isinstance(config, LimitedConfig)
    limiter = config.limiter
    config.limiter = ConnectionLimiter(replace(limiter.limits, **limits), limiter.refusals)


@pytest.fixture
def hasty(endpoint: Endpoint) -> Endpoint:
    """An endpoint of little patience, but with its own client, who is connected."""
    hurry(endpoint, header_seconds=1.0, body_seconds=0.3)
    return endpoint


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (GET, b"x: y\r\n"),
        (GET + b"x: ", b"y"),
        (POST + b"content-length: 100000\r\n\r\n", b""),
        (POST + b"content-length: 100000\r\n\r\n", b" "),
        (CHUNKED, b"1\r\n \r\n"),
        (CHUNKED + b"1;", b"x"),
    ],
    ids=["fields", "one field", "no body", "slow body", "slow chunks", "slow extension"],
)
def test_slow_request_times_out(hasty: Endpoint, begin: bytes, more: bytes) -> None:
    with connected(hasty) as connection:
        connection.send(told(begin))
        if more:
            connection.send_until_over(more, pause=0.02)
        refused(connection.answer(), 408, "HW_6024")
        assert connection.is_ended()
    assert hasty.http.get("/probes/liveness").status_code == 200


def test_silent_connection_is_closed(hasty: Endpoint) -> None:
    with connected(hasty) as silent, connected(hasty) as idle:
        idle.send(b"\r\n")
        assert silent.is_ended()
        assert idle.is_ended()


def test_stream_outlives_request_timeouts(hasty: Endpoint, memory_store: MemoryStore) -> None:
    with hasty.stream() as stream, connected(hasty) as late:
        stream.completed()
        assert late.is_ended()
        memory_store.put(hasty.bucket("mine", "u1"), "1")
        memory_store.commit()
        stream.completed(2)


def test_large_body_on_a_slow_line(endpoint: Endpoint) -> None:
    hurry(endpoint, body_seconds=0.3)
    with connected(endpoint) as connection:
        connection.send(told(POST), b"content-length: 200000\r\n\r\n")
        assert connection.send_until_over(b" " * 2000, pause=0.01, most=200_000) == 200_000
        assert connection.answer().status == 400


def test_unread_body_times_out(hasty: Endpoint) -> None:
    with connected(hasty) as connection:
        connection.send(GET, b"content-length: 100000\r\n\r\n")
        assert connection.answer().status == 200
        connection.send_until_over(b" ", pause=0.02)
        assert connection.is_ended()


def test_request_that_arrived_while_busy_is_answered(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    begun, sent = threading.Event(), threading.Event()

    async def busy(_: Request) -> Response:
        begun.set()
        assert sent.wait(60)
        time.sleep(2.2)  # noqa: ASYNC251 - the process is to be busy
        return Response()

    endpoint = start_endpoint(memory_store, extra_routes=[Route("/busy", busy)])
    with ExitStack() as stack:
        other = stack.enter_context(connected(endpoint))
        other.send(GET, b"\r\n")
        assert other.answer().status == 200
        hurry(endpoint, header_seconds=2.0)
        late = stack.enter_context(connected(endpoint))
        other.send(b"GET /busy HTTP/1.1\r\nhost: x\r\n\r\n")
        assert begun.wait(60)
        late.send(GET, b"\r\n")
        sent.set()
        assert late.answer().status == 200


# numbers


def test_connections_per_address_are_limited(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    endpoint = start_endpoint(memory_store, http=HttpLimits(max_connections_per_address=3, drain_seconds=0))
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(connected(endpoint))
            connection.send(GET, b"\r\n")
            assert connection.answer().status == 200
        with connected(endpoint) as third:
            refused(third.answer(), 429, "HW_6026")
            assert third.is_ended()
        assert endpoint.http.get("/probes/liveness").status_code == 200
    wait_until(lambda: _status_of(endpoint, GET + b"\r\n") == 200, "room for another")


def test_connections_in_all_are_limited(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    limits = HttpLimits(max_connections=2, max_connections_per_address=0, drain_seconds=0)
    endpoint = start_endpoint(memory_store, http=limits)
    with connected(endpoint) as first:
        first.send(GET, b"\r\n")
        assert first.answer().status == 200
        with connected(endpoint) as second:
            refused(second.answer(), 503, "HW_6025")
        assert endpoint.http.get("/probes/liveness").status_code == 200
    wait_until(lambda: _status_of(endpoint, GET + b"\r\n") == 200, "room for another")


def test_pipelining(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        connection.send((GET + b"\r\n") * 10)
        assert [connection.answer().status for _ in range(10)] == [200] * 10


@pytest.mark.parametrize(
    "ahead",
    [(GET + b"\r\n") * 2000, POST + b"content-length: 1000000\r\n\r\n" + b" " * 1_000_000],
    ids=["requests", "bodies"],
)
def test_endless_pipelining_is_not_read(endpoint: Endpoint, ahead: bytes) -> None:
    before = forget_peak()
    with connected(endpoint) as connection:
        connection.send(told(POST), b"content-length: 2\r\n\r\n{}")
        assert connection.answer().status == 200
        assert connection.send_until_over(told(ahead), most=64 * MEBIBYTE) < 64 * MEBIBYTE
        assert peak() - before < 16 * MEBIBYTE
        assert serves(endpoint)


def test_pipelining_beyond_the_limit_is_closed(
    endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(endpoint) as connection:
        connection.send((GET + b"\r\n") * 2000)
        connection.read_to_the_end()
    assert "HW_6027" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


# behind a proxy


def test_forwarded_address_of_a_trusted_proxy(
    start_endpoint: StartEndpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    limits = HttpLimits(max_connections_per_address=1, trusted_proxies=(ip_network("127.0.0.0/8"),), drain_seconds=0)
    endpoint = start_endpoint(memory_store, http=limits)

    def ask(address: str) -> int:
        headers = {"x-forwarded-for": f"9.9.9.9, {address}", "authorization": "Token x"}
        return endpoint.http.post("/sync/stream", json={}, headers=headers).status_code

    with connected(endpoint) as connection:
        connection.send(told(POST), b"x-forwarded-for: 203.0.113.7\r\ncontent-length: 2\r\n\r\n{}")
        assert connection.answer().status == 200
        assert ask("203.0.113.7") == 429
        assert ask("203.0.113.8") == 401
    assert '"address": "203.0.113.8"' in caplog.text


def test_forwarded_address_without_trusted_proxy(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.http.post("/sync/stream", json={}, headers={"x-forwarded-for": "203.0.113.7"})
    assert '"address": "127.0.0.1"' in caplog.text
    assert "203.0.113.7" not in caplog.text


# what is told


def test_disconnect_within_a_body_is_no_error(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with connected(endpoint) as connection:
        connection.send(told(POST), b"content-length: 100\r\n\r\n{")
        assert serves(endpoint)
    while "disconnected before its request" not in caplog.text:
        assert serves(endpoint)
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == []
    assert not any(record.exc_info for record in caplog.records)


def test_bad_requests_do_not_fill_the_log(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(20):
        with connected(endpoint) as connection:
            connection.send(b"nonsense\r\n\r\n")
            connection.answer()
        with connected(endpoint) as connection:
            connection.send(GET, b"connection: upgrade\r\nupgrade: h2c\r\n\r\n")
            assert connection.answer().status == 200
    told = [record.name for record in caplog.records if record.name not in {"httpx", "uvicorn.access"}]
    assert told == ["headwater.api.refusals"]
