"""Streams and connections over websockets that end: with their token, without a stream, in the middle of a payload."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import bson
import pytest
from websockets.exceptions import ConnectionClosed

from headwater.api.http import connections
from headwater.api.http.websocket import FRAMES_AT_ONCE
from headwater.api.limits import StreamLimits
from headwater.api.rsocket import connection, frames
from headwater.api.rsocket.sink import FRAGMENT_BYTES
from headwater.api.streams import stream
from headwater.sync import states
from tests.support import rsocket_client as client
from tests.support.fix_api import Endpoint, make_token
from tests.support.loop_turns import in_each_turn
from tests.support.memory import forget_peak, peak
from tests.support.memory_store import MemoryStore
from tests.support.rsocket_client import Received, Requester, requester
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import KEEPALIVE, MEBIBYTE, StartEndpoint, masked, read_until, request_stream, upgrade

LARGE = 8 * MEBIBYTE


@pytest.fixture
def connected(endpoint: Endpoint) -> Iterator[Requester]:
    with requester(str(endpoint.http.base_url)) as found:
        yield found


@pytest.fixture
def large(memory_store: MemoryStore, start_endpoint: StartEndpoint) -> Endpoint:
    """An endpoint with one large row."""
    endpoint = start_endpoint(memory_store)
    memory_store.put(endpoint.bucket("mine", "u1"), "large", json.dumps({"text": "x" * LARGE}))
    memory_store.commit()
    return endpoint


def is_told_to_fetch_a_token(received: Received) -> bool:
    return received.kind == client.ERROR and received.error[1].startswith("[PSYNC_S2103] ")


def test_expired_token_is_an_error(endpoint: Endpoint, connected: Requester) -> None:
    """After COMPLETE the stock SDK forgets payloads that it has not handled yet, and uses the same token again."""
    now = int(time.time())
    connected.set_up(make_token(iat=now - 100, exp=now - 5))
    connected.request()
    assert connected.receive().document == {"token_expires_in": 0}
    assert is_told_to_fetch_a_token(connected.receive())


def test_quiet_stream_ends_with_its_token(endpoint: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token(exp=time.time() + 4))
    connected.request(credit=100)
    *_, last = connected.documents("checkpoint_complete")
    while not is_told_to_fetch_a_token(received := connected.receive()):
        last = received.document
    assert last == {"token_expires_in": 0}
    wait_until(lambda: endpoint.open_streams() == 0, "the end of the stream")


def test_unread_stream_and_its_token(endpoint: Endpoint, connected: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "KEEPALIVE", 0.2)  # it waits for credit by the time of the first
    monkeypatch.setattr(stream, "STUCK_SECONDS", 0.1)
    connected.set_up(make_token(exp=time.time() + 4))
    connected.request(credit=1)
    assert "checkpoint" in connected.receive().document
    assert is_told_to_fetch_a_token(connected.receive())
    wait_until(lambda: endpoint.open_streams() == 0, "the end of the stream")


@pytest.mark.parametrize("streams", [0, 1])
def test_connection_without_a_stream(connected: Requester, monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    connected.set_up(make_token())
    for number in range(streams):
        connected.request(stream=2 * number + 1)
        connected.receive()
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    for number in range(streams):
        connected.cancel(2 * number + 1)
    received = last_frame(connected)
    assert received.error == (frames.ErrorCode.CONNECTION_CLOSE, "the connection has no stream")


def last_frame(found: Requester) -> Received:
    """What comes last on a connection that keepalives are sent on until it is closed."""
    received, deadline = None, time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(ConnectionClosed):
            found.send(KEEPALIVE)
        try:
            received = found.receive()
        except ConnectionClosed:
            assert received is not None
            return received
    raise AssertionError("the connection is closed")


def test_connection_with_a_stream_stays(connected: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    connected.set_up(make_token())
    connected.request(credit=100)
    list(connected.documents("checkpoint_complete"))
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.1)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        connected.send(KEEPALIVE)
        assert connected.receive().kind == client.KEEPALIVE


def test_websockets_per_user_are_limited(memory_store: MemoryStore, start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(memory_store, streams=StreamLimits(10, per_user=2))
    url = str(endpoint.http.base_url)
    with ExitStack() as stack:
        for _ in range(2):
            first = stack.enter_context(requester(url))
            first.set_up(make_token())
            answers_keepalives(first)
        with requester(url) as third:
            third.set_up(make_token())
            assert third.receive().error[1].startswith("[PSYNC_S2304] ")
        with requester(url) as of_another:
            of_another.set_up(make_token("u2"))
            answers_keepalives(of_another)
    wait_until(lambda: is_let_in(endpoint), "the place is free again")


def answers_keepalives(found: Requester) -> None:
    found.send(KEEPALIVE)
    assert found.receive().kind == client.KEEPALIVE


def is_let_in(endpoint: Endpoint) -> bool:
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token())
        found.send(KEEPALIVE)
        return found.receive().kind == client.KEEPALIVE


def test_large_payload_is_fragmented(large: Endpoint) -> None:
    with requester(str(large.http.base_url)) as found:
        found.set_up(make_token())
        found.request()
        assert "checkpoint" in found.receive().document
        received = [found.receive_frame()]
        while received[-1].kind == client.KEEPALIVE or received[-1].flags & client.FOLLOWS:
            if received[-1].kind == client.PAYLOAD and len(received) < 16:
                found.send(KEEPALIVE)  # some: what was sent ahead already can't be overtaken
            received.append(found.receive_frame())
        fragments = [each.body for each in received if each.kind == client.PAYLOAD]
        assert max(map(len, fragments)) == FRAGMENT_BYTES
        assert bson.decode(b"".join(fragments))["data"]["has_more"] is False
        assert len(received) > len(fragments)
        assert received[-1].kind == client.PAYLOAD
        while (last := found.receive_frame()).kind == client.KEEPALIVE:
            pass
        assert "checkpoint_complete" in last.document


def test_cancel_within_a_payload(large: Endpoint) -> None:
    with requester(str(large.http.base_url)) as found:
        found.set_up(make_token())
        found.request()
        found.receive()
        assert found.receive_frame().flags & client.FOLLOWS
        found.cancel()
        found.request(stream=3)
        while (received := found.receive_frame()).stream == 1:
            pass
        assert (received.stream, "checkpoint" in received.document) == (3, True)
        list(found.documents("checkpoint_complete"))


def test_cancelled_requests_take_no_memory(endpoint: Endpoint) -> None:
    unfinished = b"\0\0\0\x01" + b" " * (MEBIBYTE - 1000)
    rounds = 50
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token())
        answers_keepalives(found)
        before = forget_peak()
        for number in range(1, 2 * rounds, 2):
            found.send(client.frame(number, client.REQUEST_STREAM, client.FOLLOWS, unfinished))
            found.cancel(number)
        answers_keepalives(found)
        assert peak() - before < rounds / 2 * MEBIBYTE


def test_slow_websockets_share_the_waiting_row(large: Endpoint) -> None:
    slow = 20
    with ExitStack() as stack:
        stack.enter_context(waiting(large))
        before = forget_peak()
        for _ in range(slow):
            stack.enter_context(waiting(large))
        assert large.http.get("/probes/liveness").status_code == 200
        assert large.open_streams() == slow + 1
        assert peak() - before < slow * MEBIBYTE


def test_frames_are_read_while_keepalives_wait(large: Endpoint) -> None:
    with waiting(large) as connection:
        assert large.open_streams() == 1
        connection.sendall(masked(KEEPALIVE) * 20 + masked(client.frame(1, client.CANCEL)))
        wait_until(lambda: large.open_streams() == 0, "the end of the cancelled stream")


FLOOD = {
    "cancel": client.frame(1, client.CANCEL),
    "more": client.frame(1, client.REQUEST_N, 0, b"\0\0\0\1"),
    "keepalive": KEEPALIVE,
    "silent keepalive": client.frame(0, client.KEEPALIVE, 0, bytes(8)),
    "piece": client.frame(1, client.PAYLOAD, client.FOLLOWS),
    "ignored": client.frame(0, 0x0C, 0x200),
}


@pytest.mark.parametrize("kind", FLOOD)
def test_flood_of_frames_is_cut_off(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(connections, "LATE_SECONDS", 1.0)
    taken = in_each_turn(monkeypatch, connection.Connection, "_take")
    before = forget_peak()
    with socket.create_connection(endpoint.address, timeout=60) as flooding:
        upgrade(flooding)
        with suppress(OSError):
            flooding.sendall(masked(FLOOD[kind]) * (4 * MEBIBYTE // len(masked(FLOOD[kind]))))
        with endpoint.stream("u2") as stream:
            stream.completed()
        wait_until(lambda: endpoint.refused() == {"HW_6030": 1}, "the flooding connection to be cut off")
    assert taken.most <= FRAMES_AT_ONCE
    assert taken.all < 3 * connections.MOST_AT_ONCE
    assert peak() - before < 32 * MEBIBYTE


def waiting(endpoint: Endpoint) -> socket.socket:
    """A client that has read the beginning of a payload, and reads no more."""
    connection = socket.create_connection(endpoint.address, timeout=60)
    upgrade(connection)
    request_stream(connection)
    read_until(connection, b"xxxx")
    return connection
