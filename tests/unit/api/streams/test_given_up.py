"""A stream that waits for the store, and is over before it gets what it waits for."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from headwater.telemetry.log_facts import facts_of
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.rsocket_client import requester
from tests.support.slow_store import SlowStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint, post


@pytest.fixture
def slow(start_endpoint: StartEndpoint, slow_store: SlowStore, caplog: pytest.LogCaptureFixture) -> Endpoint:
    """An endpoint over the slow store, which goes on before the endpoint ends: it was made later."""
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    return start_endpoint(slow_store)


def reasons(caplog: pytest.LogCaptureFixture) -> list[object]:
    return [facts_of(each)["close_reason"] for each in caplog.records if each.message == "sync stream closed"]


def test_shutdown_before_a_turn(slow: Endpoint, slow_store: SlowStore, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(slow.stream("u1")) for _ in range(3)]
        for stream in streams:
            stream.completed()
        slow_store.slow = {slow.membership("u1")}
        slow_store.set_lookup(slow.membership("u1"), ['["l1"]'])
        slow_store.commit()
        wait_until(lambda: bool(slow_store.asked), "the first one's turn")
        slow.terminate()
        for stream in streams:
            stream.to_the_end()
    slow_store.go.set()
    slow.wait_for_the_end()
    assert reasons(caplog) == ["shutting down"] * 3
    assert slow.traffic.ended() == {"shutting down": 3}
    assert slow.refused() == {}


def test_shutdown_before_a_line(slow: Endpoint, slow_store: SlowStore, caplog: pytest.LogCaptureFixture) -> None:
    slow_store.slow = {slow.membership("u1")}
    with ExitStack() as stack:
        waiting = [stack.enter_context(asked_for_a_stream(slow)) for _ in range(2)]
        wait_until(lambda: slow.open_streams() == 2, "both requests to be there")
        slow.terminate()
        for each in waiting:
            answer = b"".join(iter(lambda: each.recv(4096), b""))  # noqa: B023 - used at once
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"\r\n\r\n0\r\n\r\n")
    slow_store.go.set()
    slow.wait_for_the_end()
    assert reasons(caplog) == ["shutting down"] * 2


def test_shutdown_without_credit(
    memory_store: MemoryStore, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    memory_store.put(endpoint.bucket("mine", "u1"), "note")
    memory_store.commit()
    with requester(str(endpoint.http.base_url)) as device:
        device.set_up(make_token())
        device.request(credit=1)
        assert "checkpoint" in device.receive().document
        endpoint.terminate()
        assert device.receive().completes
    endpoint.wait_for_the_end()
    assert reasons(caplog) == ["shutting down"]
    assert endpoint.traffic.ended() == {"shutting down": 1}


@contextmanager
def asked_for_a_stream(endpoint: Endpoint) -> Iterator[socket.socket]:
    with socket.create_connection(endpoint.address, timeout=60) as connection:
        connection.sendall(post())
        yield connection


@contextmanager
def asked_over_a_websocket(endpoint: Endpoint) -> Iterator[None]:
    with requester(str(endpoint.http.base_url)) as device:
        device.set_up(make_token())
        device.request()
        yield
        device.cancel()


@pytest.mark.parametrize("ask", [asked_for_a_stream, asked_over_a_websocket])
def test_request_of_a_gone_client_is_not_resolved(
    slow: Endpoint,
    slow_store: SlowStore,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[Endpoint], AbstractContextManager[object]],
) -> None:
    slow_store.slow = {slow.membership("u1")}
    with asked_for_a_stream(slow) as first:
        wait_until(lambda: bool(slow_store.asked), "the first one's turn")
        with ask(slow):
            wait_until(lambda: slow.open_streams() == 2, "the second request to be there")
        wait_until(lambda: slow.open_streams() == 1, "the second one's place to be free")
        assert reasons(caplog) == ["client gone"]
        slow_store.go.set()
        while b"checkpoint_complete" not in first.recv(4096):
            pass
        assert len(slow_store.asked) == 1
        with slow.stream("u1") as later:
            later.completed()
    assert len(slow_store.asked) == 2
