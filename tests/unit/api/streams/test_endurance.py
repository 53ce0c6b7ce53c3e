"""Streams that are slow, gone or cut off, and a store that fails for a while."""

from __future__ import annotations

import json
import logging
import socket

import httpx
import pytest

from headwater.storage.contract.reader import Newest
from headwater.storage.contract.store import StoreBusyError
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_logs import facts_said, line_of
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint, post


def test_store_is_not_read_ahead_of_a_slow_client(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    memory_store.chunk_ops = 1
    endpoint = start_endpoint(memory_store)
    slow, quick = endpoint.bucket("mine", "slow"), endpoint.bucket("mine", "quick")
    for number in range(60):
        memory_store.put(slow, str(number), json.dumps({"text": "x" * 1_000_000}))
        memory_store.put(quick, str(number), json.dumps({"text": "x" * 1_000_000}))
    memory_store.commit()
    with socket.create_connection(endpoint.address) as client:
        client.sendall(post(b'{"raw_data":true}', "slow"))
        wait_until(lambda: f"chunk {slow}" in memory_store.reads, "the slow client's download to begin")
        with endpoint.stream("quick") as stream:
            stream.completed()
        assert memory_store.reads.count(f"chunk {quick}") == 60
        assert memory_store.reads.count(f"chunk {slow}") < 30


def test_disconnected_client(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    mine = endpoint.bucket("mine", "u1")
    with endpoint.stream("u1", client_id="c1") as stream:
        stream.completed()
    wait_until(lambda: "client gone" in caplog.text, "the end is noticed")
    memory_store.reads.clear()
    memory_store.put(mine, "t1")
    memory_store.put(endpoint.bucket("mine", "u2"), "t2")
    with endpoint.stream("u2") as other:
        other.completed()
        memory_store.commit()
        other.completed(2)
    assert f"total {mine}" not in memory_store.reads


def test_closed_stream_log(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    memory_store.put(endpoint.bucket("mine", "u1"), "t1", '{"text":"secret words"}')
    memory_store.commit()
    token = make_token("u1")
    with endpoint.stream(token=token, client_id="phone\nforged line") as stream:
        stream.completed()
        endpoint.terminate()
        stream.to_the_end()
    wait_until(lambda: "sync stream closed" in caplog.text, "the end is logged")
    (line,) = (line_of(record) for record in caplog.records if record.getMessage() == "sync stream closed")
    (facts,) = facts_said(caplog, "sync stream closed")
    assert facts["route"] == "/sync/stream"
    assert facts["user_id"] == "u1"
    assert facts["client_id"] == "phone\nforged line"
    assert facts["close_reason"] == "shutting down"
    assert facts["operations"] == 1
    assert int(str(facts["bytes"])) > 100
    assert "\n" not in line
    assert token not in caplog.text
    assert "secret words" not in caplog.text


def test_failing_store(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    good = memory_store.newest
    failures = iter([StoreBusyError("the store is busy"), RuntimeError("a bug")])

    def newest() -> Newest | None:
        for failure in failures:
            raise failure
        return good()

    with endpoint.stream() as stream:
        stream.completed()
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.newest = newest  # type: ignore[method-assign]
        memory_store.commit()
        assert stream.completed(2).rows == {("todos", "t1"): {}}
    assert "the store is busy" in caplog.text
    assert "a bug" in caplog.text


def test_failing_download(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    def chunk(*_: object) -> None:
        raise StoreBusyError("the store is busy")

    with endpoint.stream() as stream:
        stream.completed()
        memory_store.chunk = chunk  # type: ignore[method-assign, assignment]
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.commit()
        with pytest.raises(httpx.RemoteProtocolError):
            stream.to_the_end()
    wait_until(lambda: "failed: HW_4002" in caplog.text or "cut off" in caplog.text, "the failure is logged")
    assert "Traceback" not in caplog.text
