"""Clients that read slowly, but do read: they get all of a large row, however long that takes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

import pytest

from headwater.api.limits import StreamLimits
from headwater.api.streams import stream
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync import states
from tests.support import rsocket_client as client
from tests.support.fix_api import RULES, Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import KEEPALIVE, MEBIBYTE, StartEndpoint, post, request_stream, upgrade

LARGE = 12 * MEBIBYTE
PART, PAUSE = 128 * 1024, 0.03  # slower than STALLED for the whole row
STALLED = 2.0
PONG = 1.0


def over_http(connection: socket.socket) -> None:
    connection.sendall(post(b'{"raw_data":true}'))


def over_a_websocket(connection: socket.socket) -> None:
    upgrade(connection)
    request_stream(connection)


@pytest.mark.parametrize("ask", [over_http, over_a_websocket])
def test_slow_client_gets_a_large_row(
    memory_store: MemoryStore,
    start_endpoint: StartEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(states, "KEEPALIVE", STALLED / 4)
    endpoint = start_endpoint(memory_store, streams=StreamLimits(client_read_timeout_seconds=STALLED))
    memory_store.put(endpoint.bucket("mine", "u1"), "large", json.dumps({"text": "x" * LARGE}))
    memory_store.commit()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PART)
        connection.settimeout(60)
        connection.connect(endpoint.address)
        ask(connection)
        received = b""
        while b"checkpoint_complete" not in received[-PART:]:
            time.sleep(PAUSE)
            part = connection.recv(PART)
            assert part, f"cut off after {len(received)} bytes"
            received += part
    assert received.count(b"x") >= LARGE
    assert endpoint.refused().get("HW_6020", 0) == 0


def test_late_pong_of_a_slow_websocket(memory_store: MemoryStore, start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(memory_store)
    endpoint.server.config.ws_ping_interval = 0.1
    endpoint.server.config.ws_ping_timeout = PONG
    memory_store.put(endpoint.bucket("mine", "u1"), "large", json.dumps({"text": "x" * LARGE}))
    memory_store.commit()
    with client.requester(str(endpoint.http.base_url), held=1) as found:
        found.set_up(make_token())
        found.request(credit=1000)
        assert "checkpoint" in found.receive().document
        length = frames = 0
        while length < LARGE:
            frames += 1
            if frames % 4 == 0:
                time.sleep(PAUSE)
                found.send(KEEPALIVE)
            received = found.receive_frame()
            length += len(received.body) if received.kind == client.PAYLOAD else 0
        found.websocket.socket.close()  # in order, it would first read what is left


def test_websocket_without_pong_is_closed(endpoint: Endpoint) -> None:
    endpoint.server.config.ws_ping_interval = 0.1
    endpoint.server.config.ws_ping_timeout = PONG
    with socket.create_connection(endpoint.address, timeout=60) as connection:
        over_a_websocket(connection)
        while connection.recv(PART):
            pass
    wait_until(lambda: endpoint.open_streams() == 0, "the end of the stream")


class _SlowStore(MemoryStore):
    """Gives the second chunk of a bucket once `go` is set."""

    def __init__(self, slow: str) -> None:
        super().__init__(chunk_ops=1)
        self.slow, self.go, self.asked = slow, threading.Event(), threading.Event()

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        if self.slow in bucket and after:
            self.asked.set()
            assert self.go.wait(60)
        return super().chunk(bucket, after, upto)


@pytest.mark.parametrize(
    ("lives", "stalled", "code"), [(600.0, STALLED, "HW_6020"), (5.0, 60.0, "PSYNC_S2103")], ids=["stalls", "expires"]
)
def test_client_that_stops_reading_is_cut_off(
    start_endpoint: StartEndpoint, monkeypatch: pytest.MonkeyPatch, lives: float, stalled: float, code: str
) -> None:
    monkeypatch.setattr(states, "KEEPALIVE", 1.0)
    monkeypatch.setattr(states, "JITTER", 0.0)
    monkeypatch.setattr(stream, "STUCK_SECONDS", 0.1)
    store = _SlowStore("u1")
    store.replace_config(RULES)
    store.commit()
    endpoint = start_endpoint(store, streams=StreamLimits(client_read_timeout_seconds=stalled))
    for row in range(2):
        store.put(endpoint.bucket("mine", "u1"), str(row), json.dumps({"text": "x" * MEBIBYTE}))
    store.commit()
    url = str(endpoint.http.base_url)
    with client.requester(url) as slow, client.requester(url) as other:
        slow.set_up(make_token(exp=time.time() + lives))
        slow.request(credit=2)
        assert "checkpoint" in slow.receive().document
        assert "data" in slow.receive().document
        assert store.asked.wait(60)
        other.set_up(make_token("u2"))
        other.request()
        list(other.documents("token_expires_in"))  # by then, it was time for one for the slow client, too
        store.go.set()
        received = slow.receive()
        assert received.kind == client.ERROR
        assert received.error[1].startswith(f"[{code}")
    wait_until(lambda: endpoint.open_streams() == 0, "the end of the streams")
