"""Several processes of the endpoint on one port, as devices, operators and Prometheus see them."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port, token_for
from tests.support.one_device import sees
from tests.support.processes import Running
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

STREAMS = 12
"""So many that the kernel does not give all to one of two processes."""

OURS = "/api/headwater/v1"
OPERATOR = "an admin token of the tests"
PROMISED_SECONDS = 5.0


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key, body text)")
    return deploy(NOTES).start()


def answer(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def memory(metrics: int) -> set[str]:
    """The processes whose memory Prometheus hears of."""
    return set(re.findall(r'process_resident_memory_bytes\{worker="(\d)"\}', answer(metrics, "/metrics")))


def children(running: Running) -> set[int]:
    return {child.pid for child in psutil.Process(running.process.pid).children()}


def test_dead_worker_is_replaced(deployment: Deployment, launch: Launch, source_db: SourceDb) -> None:
    port, metrics = free_port(), free_port()
    config = {**config_of(deployment, port), "api": {"workers": 2}, "telemetry": {"prometheus_port": metrics}}
    running = launch("api", config)
    wait_until(lambda: memory(metrics) == {"1", "2"}, "both processes")
    wait_until(lambda: '"ready":true' in answer(port, "/probes/readiness"), "an active config")
    assert running.output.count(f"listening on port {port} of 0.0.0.0") == 2
    is_refused(launch, config)

    dead, other = sorted(children(running))
    for number in range(8):  # the kernel chooses a process for each
        written = partial(source_db.execute, f"insert into notes values ('{number}', 'x')")
        assert len(sees(port, written).rows) == number + 1
    wait_until(lambda: ended(metrics) == 8, "all ends of streams to be counted")
    file = Path(psutil.Process(running.process.pid).cmdline()[-1])
    assert "workers" in file.read_text()
    file.write_text("no: config")  # for the next start of the whole service
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: len(children(running) - {dead, other}) == 1, "another process")
    wait_until(lambda: memory(metrics) == {"1", "2"}, "both processes again")
    assert other in children(running)
    running.ask_to_end()
    assert running.wait() == 0
    assert not psutil.pid_exists(other)


FILES, EARLY = 160, 20
WAITING = {"workers": 1, "http": {"header_seconds": 60}}


def test_connections_leave_files_to_store(deployment: Deployment, launch: Launch, source_db: SourceDb) -> None:
    port = free_port()
    running = launch("api", {**config_of(deployment, port), "api": WAITING})
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))  # long before it looks
    wait_until(lambda: '"ready":true' in answer(port, "/probes/readiness"), "an active config")
    with ExitStack() as stack:

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))

        early = [connected() for _ in range(EARLY)]
        others = [connected() for _ in range(3 * FILES)]
        assert b"503" in others[-1].recv(100)
        for number, each in enumerate(early):
            each.sendall(asking(token_for(f"user{number}")))
        for each in early:
            assert b"checkpoint_complete" in read_until(each, b"checkpoint_complete")
        source_db.execute("insert into notes values ('2', 'new')")
        for each in early:
            read_until(each, b"new")
    assert "too many open files" not in running.output.lower()
    assert " ERROR " not in running.output
    assert f"the machine allows {FILES} open files, so there may be {FILES // 2} connections" in running.output
    wait_until(lambda: answer(port, "/probes/liveness") != "", "room for others")


def asking(token: str) -> bytes:
    """The request of a stream."""
    head = f"POST /sync/stream HTTP/1.1\r\nhost: x\r\nauthorization: Token {token}\r\ncontent-length: 2\r\n\r\n{{}}"
    return head.encode()


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    found = b""
    while mark not in found:
        part = connection.recv(1 << 16)
        assert part, found
        found += part
    return found


def test_operators_reach_all_workers(deployment: Deployment, launch: Launch) -> None:
    port = free_port()
    running = launch("api", {**config_of(deployment, port), "api": {"workers": 2, "tokens": [OPERATOR]}})
    wait_until(lambda: '"ready":true' in answer(port, "/probes/readiness"), "an active config")
    running.wait_for("Application startup complete", times=2)
    known = token_for("ann")
    with ExitStack() as stack:
        streams = [stack.enter_context(Device(port, known)) for _ in range(STREAMS)]
        kept = [stack.enter_context(Device(port, token_for("bob"))) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            assert operator(port, "GET", "/clients", token="another").status_code == 401
            listed = operator(port, "GET", "/clients").json()["data"]
            assert set(listed["processes"]) == children(running) == {each["process"] for each in listed["clients"]}
            assert [each["user"] for each in listed["clients"]] == ["ann"] * STREAMS + ["bob"] * STREAMS
        assert operator(port, "POST", "/revoke", kind="sub", value="ann").status_code == 200
        revoked = time.monotonic()
        for each in streams:
            each.ends()
        assert time.monotonic() - revoked < PROMISED_SECONDS
        assert [asked(port, known).status_code for _ in range(STREAMS)] == [401] * STREAMS
        running.ask_to_end()
        for each in kept:
            each.ends()
    assert running.wait() == 0


class Device:
    """One with an open stream that was sent everything."""

    def __init__(self, port: int, token: str) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self._token = token

    def __enter__(self) -> Device:
        self._stack = ExitStack()
        self._stack.enter_context(self._http)
        headers = {"authorization": f"Token {self._token}"}
        response = self._stack.enter_context(self._http.stream("POST", "/sync/stream", json={}, headers=headers))
        self._lines: Iterator[str] = response.iter_lines()
        assert any("checkpoint_complete" in line for line in self._lines)
        return self

    def ends(self) -> None:
        """Wait for the end of the stream, which is in order."""
        assert not any("checkpoint" in line for line in self._lines)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def asked(port: int, token: str) -> httpx.Response:
    """For a write checkpoint, over a new connection."""
    headers = {"authorization": f"Token {token}"}
    return httpx.get(f"http://127.0.0.1:{port}/write-checkpoint2.json", headers=headers, timeout=30)


def operator(port: int, method: str, path: str, token: str = OPERATOR, **body: str) -> httpx.Response:
    """The answer of one of the processes, over a new connection."""
    headers = {"authorization": f"Token {token}"}
    return httpx.request(method, f"http://127.0.0.1:{port}{OURS}{path}", json=body or None, headers=headers, timeout=30)


@pytest.mark.long
def test_hung_worker_is_replaced(deployment: Deployment, launch: Launch) -> None:
    config = {**config_of(deployment, free_port()), "api": {"workers": 2}}
    running = launch("api", config)
    wait_until(lambda: running.output.count("Application startup complete") == 2, "both processes")
    hung, other = sorted(children(running))
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: len(children(running) - {hung, other}) == 1, "another process", 90)
    assert other in children(running)


def ended(metrics: int) -> int:
    """Streams of all processes that have ended."""
    told = answer(metrics, "/metrics")
    return sum(map(int, re.findall(r'headwater_streams_ended_total\{reason="client gone",worker="\d"\} (\d+)', told)))


def is_refused(launch: Launch, config: dict[str, object]) -> None:
    """A second service does not get a part of the connections."""
    second = launch("api", config)
    assert second.wait() == 1
    assert "HW_6004" in second.output
