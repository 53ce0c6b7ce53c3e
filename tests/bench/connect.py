"""A client connects with many buckets of two rows each: until its first line, and until it has everything."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

from tests.bench import report
from tests.bench.world import Meter, World, world

STREAMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())
"""

TABLES = """
create table items (id text primary key, list text not null, title text not null);
create table members (list text not null, member text not null, primary key (member, list));
create publication headwater for table items, members;
"""

TIMES = 5


@dataclass(slots=True)
class _Arrival:
    """Seconds until the first line was there whole, and until the end of the checkpoint."""

    line: float
    complete: float


def run(most: int) -> None:
    counts = [count for count in (1, 1_000, 10_000) if count < most] + [most]
    with world(fsync="off") as place:
        place.execute(
            TABLES,
            "insert into items select l || '-' || i, 'l' || l, 'title of some length ' || l"
            f" from generate_series(1, {most}) l, generate_series(1, 2) i",
            *(f"insert into members select 'l' || l, 'm{n}' from generate_series(1, {n}) l" for n in counts),
        )
        limits = {"max_buckets_per_connection": most, "max_parameter_query_results": most}
        place.serve(STREAMS, api={"parameters": limits})
        place.wait_ready()
        for count in counts:
            report.heading(f"connect with {count:,} buckets of 2 rows, the middle of {TIMES} times")
            _measure(place, count)


def _measure(place: World, count: int) -> None:
    assert place.process is not None
    _receive(place, count)  # the first one compiles the rules
    with Meter(place.process.pid).measure() as usage:
        arrivals = [_receive(place, count) for _ in range(TIMES)]
    for name, seconds in (("first line", [a.line for a in arrivals]), ("complete", [a.complete for a in arrivals])):
        report.line(f"until {name}", report.percentile(seconds, 0.5) * 1000, "ms")
    report.line("CPU seconds per thousand buckets", usage.cpu / TIMES / count * 1000, "CPU-s")


def _receive(place: World, count: int) -> _Arrival:
    stream = place.stream(f"m{count}")
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
