"""Streams on which nothing happens: what they cost, and that they end as they should."""

from __future__ import annotations

import gc
import json
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_network

import pytest

from headwater.api.http import takeover
from headwater.api.limits import HttpLimits, StreamLimits
from headwater.api.streams import stream as streams
from tests.support.fix_api import RULES, Endpoint
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import connected
from tests.support.waiting import wait_until
from tests.unit.api import by_hand
from tests.unit.api.by_hand import StartEndpoint

STREAMS = 100
# measured: 11,300 bytes for HTTP and 19,450 for a websocket, and up to 700 more that are not the streams'
MOST_BYTES_HTTP, MOST_BYTES_WEBSOCKET = 13_000, 22_000
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36"
_BROWSER = f"host: sync.example.com\r\norigin: https://app.example.com\r\nuser-agent: {AGENT}"
UPGRADE = by_hand.UPGRADE.replace(b"host: x", _BROWSER.encode())


@pytest.fixture
def roomy(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> Endpoint:
    """An endpoint that lets more streams in than the tests open."""
    return start_endpoint(memory_store, streams=StreamLimits(2 * STREAMS, 2 * STREAMS))


def request(user: str, *headers: str) -> bytes:
    """As a browser sends it."""
    more = (
        "origin: https://app.example.com",
        f"user-agent: {AGENT}",
        "x-user-agent: powersync-js/1.20.0 powersync-web Chrome/130 Linux",
        "accept-language: en-US,en;q=0.9",
        "content-type: application/json",
    )
    return by_hand.post(_body(user), user, *more, *headers)


def _body(user: str) -> bytes:
    return json.dumps({"raw_data": True, "client_id": user, "app_metadata": {"app_version": "1.2.3"}}).encode()


def idle(endpoint: Endpoint, user: str, *headers: str) -> socket.socket:
    """A stream whose client has everything."""
    connection = socket.create_connection(endpoint.address, timeout=60)
    connection.sendall(request(user, *headers))
    by_hand.read_until(connection, b"checkpoint_complete")
    return connection


def idle_websocket(endpoint: Endpoint, user: str, agent: str = "powersync-js/1.20.0 Chrome/130") -> socket.socket:
    """The same over a websocket."""
    connection = socket.create_connection(endpoint.address, timeout=60)
    by_hand.upgrade(connection, user, agent, UPGRADE)
    by_hand.request_stream(connection, _body(user))
    by_hand.read_until(connection, b"checkpoint_complete")
    return connection


def boastful_websocket(endpoint: Endpoint, user: str) -> socket.socket:
    """A client that says much of itself."""
    return idle_websocket(endpoint, user, user * (30_000 // len(user)))


@pytest.mark.parametrize(
    ("opened", "most_bytes"),
    [
        (idle, MOST_BYTES_HTTP),
        (idle_websocket, MOST_BYTES_WEBSOCKET),
        (boastful_websocket, MOST_BYTES_WEBSOCKET),
    ],
)
def test_memory_of_an_idle_stream(
    roomy: Endpoint, opened: Callable[[Endpoint, str], socket.socket], most_bytes: int
) -> None:
    with ExitStack() as stack:
        stack.enter_context(opened(roomy, "first"))
        tracemalloc.start()
        try:
            before = _traced()
            for number in range(STREAMS):
                stack.enter_context(opened(roomy, f"u{number}"))
            assert (_traced() - before) / STREAMS < most_bytes
        finally:
            tracemalloc.stop()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_answer_ends_with_its_connection(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with idle(endpoint, "u1") as connection:
        connection.sendall(b"GET /probes/liveness HTTP/1.1\r\nhost: x\r\n\r\n")
        memory_store.replace_config(RULES + "\n")
        rest = b""
        while part := connection.recv(1 << 16):
            rest += part
        assert rest.endswith(b"0\r\n\r\n")
        assert b"HTTP/1.1 200" not in rest


def test_disconnect_with_a_request_waiting_frees_the_place(endpoint: Endpoint) -> None:
    with idle(endpoint, "u1") as connection:
        connection.sendall(b"GET /probes/liveness HTTP/1.1\r\nhost: x\r\n\r\n")
    wait_until(lambda: endpoint.open_streams() == 0, "the end of the stream")


def test_stream_counts_for_its_address_behind_a_proxy(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    limits = HttpLimits(max_connections_per_address=1, trusted_proxies=(ip_network("127.0.0.0/8"),), drain_seconds=0)
    endpoint = start_endpoint(memory_store, http=limits)
    said = "x-forwarded-for: 203.0.113.7"
    with idle(endpoint, "u1", said):
        assert _status(endpoint, said) == 429
    wait_until(lambda: _status(endpoint, said) == 200, "the place to be free again")


def _status(endpoint: Endpoint, *headers: str) -> int:
    with connected(endpoint) as connection:
        connection.send(request("u1", *headers))
        return connection.answer().status


def test_stuck_connection_closes(
    endpoint: Endpoint, memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(takeover, "LINGER_SECONDS", 0.2)
    for row in range(300):
        memory_store.put(endpoint.bucket("mine", "u1"), str(row), json.dumps({"text": "x" * 100_000}))
    memory_store.commit()
    with connected(endpoint) as connection:
        connection.send(request("u1"))
        assert connection.answer().status == 200
        memory_store.replace_config(RULES + "\n")
        # the tests' own probes keep one
        wait_until(lambda: len(endpoint.server.server_state.connections) == 1, "the connection to be closed")
