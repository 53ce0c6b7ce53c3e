"""Streams that are slow, gone or cut off, and a store that fails for a while."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import pytest

from headwater.storage.contract.reader import Newest
from headwater.storage.contract.store import StoreBusyError
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_logs import facts_said, line_of
from tests.support.memory_store import MemoryStore


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_client_that_does_not_read_is_not_read_ahead_for(
    start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore
) -> None:
    memory_store.chunk_ops = 1
    endpoint = start_endpoint(memory_store)
    slow, quick = endpoint.bucket("mine", "slow"), endpoint.bucket("mine", "quick")
    for number in range(60):
        memory_store.put(slow, str(number), json.dumps({"text": "x" * 1_000_000}))
        memory_store.put(quick, str(number), json.dumps({"text": "x" * 1_000_000}))
    memory_store.commit()
    address = (endpoint.http.base_url.host, endpoint.http.base_url.port)
    with socket.create_connection(address) as client:
        token = make_token("slow")
        client.sendall(
            b"POST /sync/stream HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n"
            b"authorization: Token " + token.encode() + b'\r\n\r\n{"raw_data":true}'
        )
        wait_until(lambda: f"chunk {slow}" in memory_store.reads, "the slow client's download begins")
        with endpoint.stream("quick") as stream:
            stream.completed()
        assert memory_store.reads.count(f"chunk {quick}") == 60
        assert memory_store.reads.count(f"chunk {slow}") < 30


def test_a_client_that_went_away_costs_nothing_more(
    endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_client_that_went_away_with_a_request_waiting_leaves_its_place(endpoint: Endpoint) -> None:
    head = f"host: x\r\nauthorization: Token {make_token()}\r\n"
    with socket.create_connection(endpoint.address) as client:
        client.sendall(f"POST /sync/stream HTTP/1.1\r\n{head}content-length: 2\r\n\r\n{{}}".encode())
        client.sendall(b"GET /probes/liveness HTTP/1.1\r\nhost: x\r\n\r\n")
        heard = b""
        while b"checkpoint_complete" not in heard:
            heard += client.recv(65536)
    wait_until(lambda: endpoint.open_streams() == 0, "the stream ends")


def test_the_log_tells_of_a_stream_but_not_its_token_or_rows(
    endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_client_cannot_fill_the_log_with_what_it_says_of_itself(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    metadata = {f"{n}{'key' * 1_000}": "value" * 1_000 for n in range(100)}
    with endpoint.stream(app_metadata=metadata, client_id="c" * 1000) as stream:
        stream.completed()
    wait_until(lambda: "sync stream closed" in caplog.text, "the end is logged")
    (message,) = (line_of(record) for record in caplog.records if record.getMessage() == "sync stream closed")
    assert len(message) < 20_000
    (facts,) = facts_said(caplog, "sync stream closed")
    assert isinstance(facts["app_metadata"], dict)
    assert len(facts["app_metadata"]) == 20


def test_a_store_that_fails_for_a_while_is_followed_again(
    endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_failing_download_is_cut_off_and_logged_without_a_trace(
    endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
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


SERVER = """
from tests.support.fix_api import *
from headwater.api.http.server import serve_app
store = MemoryStore()
store.replace_config(RULES)
store.put("x", "1")
store.commit()
app = create_app(ApiSettings(StaticKeys((parse_key(jwk()),)), frozenset({AUDIENCE})), store, PlayedHead())
listening = bind("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
serve_app(app, [listening])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_in_order_with_streams_open(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}/sync/stream"
            headers = {"authorization": f"Token {make_token()}"}
            with httpx.stream("POST", url, json={}, headers=headers, timeout=60) as response:
                lines = response.iter_lines()
                assert "checkpoint" in next(lines)
                process.send_signal(number)
                for _ in lines:
                    pass
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
