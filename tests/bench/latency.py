"""From commit to line: how long until a client's stream carries a change, beside a write to disk and a loopback."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Generator
from itertools import islice

import psycopg

from tests.bench import data, report
from tests.bench.service import BenchService, bench_service


def run(samples: int) -> None:
    report.heading(f"commit to line, one client, {samples} commits")
    with bench_service() as service:
        service.serve_ready(data.STREAMS, data.TABLE, "create publication headwater for table items", data.insert(100))
        first, *taken = _measure(service, samples + 1)
    yardstick = _loopback_and_fsync(200)
    report.percentiles(taken, "loopback + fsync", yardstick)
    report.line("the first since the start", first * 1000, "ms", "loopback + fsync", max(yardstick) * 1000)


def _measure(service: BenchService, samples: int) -> list[float]:
    insert = "insert into items (owner, title, n) values ('u1', %s, 0)"
    with service.stream("u1") as stream:
        read_until(stream, b"checkpoint_complete")
        return list(islice(commits(service, stream, insert), samples))


def commits(service: BenchService, stream: socket.socket, insert: str, database: str = "bench") -> Generator[float]:
    """Commit a row with a text of its own, again and again; seconds until the stream carries each."""
    with psycopg.connect(service.postgres.dsn(database), autocommit=True) as conn:
        while True:
            mark = f"mark-{time.monotonic_ns()}-{os.getpid()}"
            conn.execute(insert.encode(), [mark])
            committed = time.perf_counter()
            read_until(stream, mark.encode())
            taken = time.perf_counter() - committed
            read_until(stream, b"checkpoint_complete")
            yield taken
            time.sleep(0.01)


_rest: dict[socket.socket, bytes] = {}


def read_until(stream: socket.socket, mark: bytes) -> None:
    buffer = _rest.pop(stream, b"")
    while mark not in buffer:
        data_ = stream.recv(1 << 16)
        assert data_, f"the stream ended before {mark!r}"
        buffer = buffer[1 - len(mark) :] + data_  # there may be millions of rows before it
    _rest[stream] = buffer.partition(mark)[2]


def _loopback_and_fsync(samples: int) -> list[float]:
    """One byte over a socket to a thread that syncs 4 kB to disk and answers."""
    near, far = socket.socketpair()
    with tempfile.TemporaryFile() as file:

        def echo() -> None:
            while far.recv(1):
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
                far.sendall(b"1")

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        taken = []
        for _ in range(samples):
            started = time.perf_counter()
            near.sendall(b"1")
            near.recv(1)
            taken.append(time.perf_counter() - started)
        near.close()
        thread.join()
        far.close()
    return taken
