"""What another table's commits notice of a large table that is compared with the source: their latency meanwhile,
beside their latency without."""

from __future__ import annotations

import os
import socket
import threading
import time

import psycopg

from tests.bench import report
from tests.bench.latency import read_until
from tests.bench.world import World, world

STREAMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT id, owner, title FROM items WHERE owner = auth.user_id()
  others:
    auto_subscribe: true
    query: SELECT id, title FROM others
"""

CHANGES = {
    "all rows are stored anew, none is sent": "alter table items alter column n type bigint",
    "1 row in 100 differs": "alter table items alter column title type text"
    " using case when id % 100 = 0 then title || '!' else title end",
    "other ids": "alter table items replica identity full",
}


SAMPLES = 300


def run(rows: int) -> None:
    with world() as place:
        place.execute(
            "create table items (id bigint primary key, owner text, title text, n int)",
            f"insert into items select i, 'u' || i % 10, 'title ' || i, i from generate_series(1, {rows}) i",
            "create table others (id text primary key, title text)",
            "create publication headwater for all tables",
        )
        place.serve(STREAMS)
        place.wait_ready()
        stream = place.stream("nobody")
        read_until(stream, b"checkpoint_complete")
        report.heading(f"commit to line of another table while one of {rows:,} rows is compared")
        _measure(place, stream, None)  # the first commits since the start
        alone = _measure(place, stream, None)
        for name, change in CHANGES.items():
            _while_compared(place, stream, alone, name, change)
        stream.close()


def _while_compared(place: World, stream: socket.socket, alone: list[float], name: str, change: str) -> None:
    known = len(place.bulk_records())
    done = threading.Event()

    def wait() -> None:
        while all(record.kind != "re-sync" for record in place.bulk_records()[known:]):
            time.sleep(0.2)
        done.set()

    place.execute(change)
    started = time.perf_counter()
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    taken = _measure(place, stream, done)
    waiter.join()
    report.line(f"{name}: commits until it was over", len(taken), "")
    report.line("  which took", time.perf_counter() - started, "s")
    for share, percentile in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        there, without = report.percentile(taken, share) * 1000, report.percentile(alone, share) * 1000
        report.line(f"  {percentile}", there, "ms", "without", without)


def _measure(place: World, stream: socket.socket, done: threading.Event | None) -> list[float]:
    """Latencies of commits to the other table: SAMPLES of them, or as many as there are until `done`."""
    taken: list[float] = []
    with psycopg.connect(place.postgres.dsn("bench"), autocommit=True) as conn:
        while len(taken) < SAMPLES if done is None else not done.is_set():
            mark = f"mark-{time.monotonic_ns()}-{os.getpid()}"
            conn.execute("insert into others values (%s, %s)", [mark, mark])
            committed = time.perf_counter()
            read_until(stream, mark.encode())
            taken.append(time.perf_counter() - committed)
            read_until(stream, b"checkpoint_complete")
            time.sleep(0.01)
    return taken
