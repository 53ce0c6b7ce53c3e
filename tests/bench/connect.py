"""A device with many buckets of two rows each: until it has its first line and everything, what a change costs that
concerns one of them, and what the endpoint keeps of it."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from tests.bench import report
from tests.bench.latency import read_until
from tests.bench.service import BenchService, Endpoint, Meter, bench_service, resident
from tests.support.sync_configs import auto_streams

STREAMS = auto_streams(
    items="SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())"
)

TABLES = """
create table items (id text primary key, list text not null, title text not null);
create table members (list text not null, member text not null, primary key (member, list));
create publication headwater for table items, members;
"""

BUDGETS = {("complete", 1_000): 60.0}
"""Milliseconds, by what is waited for and the number of buckets."""

TIMES = 5
STREAMS_HELD = 20


@dataclass(slots=True)
class _Arrival:
    """Seconds until the first line was there whole, and until the end of the checkpoint."""

    line: float
    complete: float


def run(most: int) -> None:
    counts = [count for count in (1, 100, 1_000, 10_000) if count < most] + [most]
    limits = {"max_buckets_per_connection": most + TIMES, "max_parameter_query_results": most + TIMES}
    with bench_service(fsync="off") as service:
        service.execute(
            TABLES,
            "insert into items select l || '-' || i, 'l' || l, 'title of some length ' || l"
            f" from generate_series(1, {most + TIMES}) l, generate_series(1, 2) i",
            *(f"insert into members select 'l' || l, 'm{n}' from generate_series(1, {n}) l" for n in counts),
        )
        service.serve_ready(STREAMS)
        for count in counts:
            with service.endpoint(api={"parameters": limits}) as endpoint:
                report.heading(f"connect with {count:,} buckets of 2 rows, the middle of {TIMES} times")
                _connects(service, endpoint, count)
                report.heading(f"changes for a device with {count:,} buckets, the middle of {TIMES} times")
                _changes(service, endpoint, count)
                _memory(service, endpoint, count)


def _connects(service: BenchService, endpoint: Endpoint, count: int) -> None:
    _receive(service, endpoint, count)  # the first one compiles the rules
    with Meter(endpoint.pid).measure() as usage:
        arrivals = [_receive(service, endpoint, count) for _ in range(TIMES)]
    for name, seconds in (("first line", [a.line for a in arrivals]), ("complete", [a.complete for a in arrivals])):
        report.line(f"until {name}", report.percentile(seconds, 0.5) * 1000, "ms", "budget", BUDGETS.get((name, count)))
    report.line("  CPU seconds per thousand buckets", usage.cpu / TIMES / count * 1000, "CPU-s")


def _changes(service: BenchService, endpoint: Endpoint, count: int) -> None:
    """A row in one bucket, and a bucket more, for which all are looked up again."""
    kinds = {
        "commit to line, a row": "update items set title = title || '!' where id = '1-1'",
        "commit to line, a bucket": f"insert into members select 'l' || max(substr(list, 2)::int) + 1, 'm{count}'"
        f" from members where member = 'm{count}'",
    }
    with contextlib.closing(service.stream(f"m{count}", port=endpoint.port)) as stream:
        read_until(stream, b"checkpoint_complete")
        for name, statement in kinds.items():
            taken = []
            with Meter(endpoint.pid).measure() as usage:
                for _ in range(TIMES):
                    service.execute(statement)
                    committed = time.perf_counter()
                    read_until(stream, b"checkpoint_complete")
                    taken.append(time.perf_counter() - committed)
            report.line(name, report.percentile(taken, 0.5) * 1000, "ms")
            report.line("  CPU milliseconds", usage.cpu / TIMES * 1000, "CPU-ms")


def _memory(service: BenchService, endpoint: Endpoint, count: int) -> None:
    with contextlib.ExitStack() as stack:
        before = resident(endpoint.pid)
        for _ in range(STREAMS_HELD):
            stream = stack.enter_context(contextlib.closing(service.stream(f"m{count}", port=endpoint.port)))
            read_until(stream, b"checkpoint_complete")
        held = (resident(endpoint.pid) - before) / STREAMS_HELD
        report.line("memory of an idle stream", held / 1000, "KB")
        report.line("  of each of its buckets", held / count, "B")


def _receive(service: BenchService, endpoint: Endpoint, count: int) -> _Arrival:
    stream = service.stream(f"m{count}", port=endpoint.port)
    started = time.perf_counter()
    line = None
    received, seen = bytearray(), 0
    with contextlib.closing(stream) as connection:
        while b'{"checkpoint_complete"' not in received[max(0, seen - 64) :]:
            seen = len(received)
            received += _some(connection)
            # the response's head has newlines too, but no line of the stream
            if line is None and b'"streams":[' in received:
                line = time.perf_counter() - started
    assert line is not None
    return _Arrival(line, time.perf_counter() - started)


def _some(connection: socket.socket) -> bytes:
    part = connection.recv(1 << 20)
    assert part, "the stream ended early"
    return part
