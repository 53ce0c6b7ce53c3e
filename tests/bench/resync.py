"""How long a change of a table takes to its devices, and what another table's commits notice of it: their latency
meanwhile, beside their latency without."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from headwater.source.triggers import install
from tests.bench import report
from tests.bench.latency import commits, read_until
from tests.bench.service import BenchService, bench_service
from tests.support.sync_configs import auto_streams

STREAMS = auto_streams(
    items="SELECT id, owner, title FROM items WHERE owner = auth.user_id()", others="SELECT id, title FROM others"
)

CHANGES = {
    "all rows are stored anew, none is sent": "alter table items alter column n type bigint",
    "1 row in 100 differs": "alter table items alter column title type text"
    " using case when id % 100 = 0 then title || '!' else title end",
    "other ids": "alter table items replica identity full",
}

SAMPLES = 300
_READY_SECONDS = 3600.0
_STALL = "  longest commit of another table meanwhile"

KINDS = {
    "column added with a constant": "alter table {0} add column x text default 'some text'",
    "column dropped": "alter table {0} drop column x",
    "1 row in 100 rewritten": "alter table {0} alter column title type text"
    " using case when id % 100 = 0 then title || '!' else title end",
    "swapped with a copy": "create table copy (like {0} including all); insert into copy select * from {0};"
    " drop table {0}; alter table copy rename to {0}",
    "other identity": "alter table {0} replica identity full",
    "dropped": "drop table {0}",
}
AT_ONCE = ("column added with a constant", "1 row in 100 rewritten", "other identity")
TABLES_AT_ONCE = 3

SIZES = (50, 10_000)


def run(rows: int) -> None:
    with bench_service() as service:
        service.execute(
            "create table items (id bigint primary key, owner text, title text, n int)",
            f"insert into items select i, 'u' || i % 10, 'title ' || i, i from generate_series(1, {rows}) i",
            "create table others (id text primary key, title text)",
            "create publication headwater for all tables",
        )
        service.serve_ready(STREAMS)
        stream = service.stream("nobody")
        read_until(stream, b"checkpoint_complete")
        report.heading(f"commit to line of another table while one of {rows:,} rows is compared")
        _measure(service, stream, None)  # the first commits since the start
        alone = _measure(service, stream, None)
        for name, change in CHANGES.items():
            _while_compared(service, stream, alone, name, change)
        stream.close()


def to_device(sizes: Sequence[int]) -> None:
    """Seconds from the commit of a change to the device, by kind and size, as a look at the catalog finds it every few
    seconds and as event triggers tell of it; the same of some tables that are changed at once; and the longest that a
    commit to another table took meanwhile."""
    found = {"by looking": False, "by triggers": True}
    alone = {
        (size, how): f"items_{size}_{number}"
        for number, how in enumerate(found)
        for size in sizes
        if found[how] or size <= max(SIZES)  # the wait for a look is nothing beside what a large table takes
    }
    some = [size for size in sizes if size <= max(SIZES)]  # of large ones, each takes its own time
    beside = {size: [f"beside_{size}_{number}" for number in range(TABLES_AT_ONCE)] for size in some}
    with bench_service() as service:
        tables = [(table, size) for (size, _), table in alone.items()]
        tables += [(table, size) for size, names in beside.items() for table in names]
        for table, size in tables:
            service.execute(
                f"create table {table} (id bigint primary key, title text)",
                f"insert into {table} select i, 'title ' || i from generate_series(1, {size}) i",
            )
        service.execute("create table others (id text primary key, title text)")
        service.execute("create publication headwater for all tables")
        queries = ", ".join(f"SELECT * FROM {name}" for name in [*(table for table, _ in tables), "others"])
        service.serve(f"config: {{edition: 3}}\nstreams:\n  all: {{auto_subscribe: true, queries: [{queries}]}}\n")
        service.wait_ready(_READY_SECONDS)
        stream = service.stream("somebody")
        read_until(stream, b"checkpoint_complete")
        _measure(service, stream, None)
        longest = max(_measure(service, stream, None))
        took: dict[tuple[int, str], float] = {}
        for (size, how), table in alone.items():
            if found[how]:
                install(service.source)
            took |= _each_kind(service, stream, longest, table, size, how)
        for size, names in beside.items():
            _at_once(service, stream, longest, names, size, took)
        stream.close()


def _each_kind(
    service: BenchService, stream: socket.socket, longest: float, table: str, size: int, how: str
) -> dict[tuple[int, str], float]:
    """Returns the seconds of each kind of change, with the size."""
    report.heading(f"from a change of a table of {size:,} rows to the device, found {how}")
    copied = _copied(service, [table])
    took: dict[tuple[int, str], float] = {}
    for kind, change in KINDS.items():
        seconds, stall = _until_shown(service, stream, [change.format(table)])
        took[size, kind] = seconds
        report.line(kind, seconds, "s", "COPY of the table alone", copied)
        report.line(_STALL, stall * 1000, "ms", "without", longest * 1000)
    return took


def _at_once(
    service: BenchService,
    stream: socket.socket,
    longest: float,
    tables: Sequence[str],
    size: int,
    took: Mapping[tuple[int, str], float],
) -> None:
    """`took` says how long a change of one table was on its way that was found as these are."""
    report.heading(f"the same of {len(tables)} tables of {size:,} rows in one transaction, found by triggers")
    copied = _copied(service, tables)
    for kind in AT_ONCE:
        seconds, stall = _until_shown(service, stream, [KINDS[kind].format(table) for table in tables])
        report.line(kind, seconds, "s", "of one table", took[size, kind])
        report.line("", seconds, "s", "COPY of the tables alone", copied)
        report.line(_STALL, stall * 1000, "ms", "without", longest * 1000)


def _copied(service: BenchService, tables: Sequence[str]) -> float:
    started = time.perf_counter()
    for table in tables:
        service.copy_out(table)
    return time.perf_counter() - started


def _until_shown(service: BenchService, stream: socket.socket, changes: Sequence[str]) -> tuple[float, float]:
    """Seconds until changes of as many tables, in one transaction, were taken up; and the longest of other commits."""
    before = service.shapes()

    def waiting() -> bool:
        now = service.shapes()
        return sum(now.get(oid) != shape for oid, shape in before.items()) < len(changes) or service.marked()

    started = time.perf_counter()
    service.execute("; ".join(changes))
    taken = _measure_while(service, stream, waiting, 0.02)
    return time.perf_counter() - started, max(taken, default=0.0)


def _measure_while(
    service: BenchService, stream: socket.socket, waiting: Callable[[], bool], pause: float
) -> list[float]:
    """Latencies of commits to the other table for as long as something is waited for."""
    done = threading.Event()

    def wait() -> None:
        while waiting():
            time.sleep(pause)
        done.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    taken = _measure(service, stream, done)
    waiter.join()
    return taken


def _while_compared(service: BenchService, stream: socket.socket, alone: list[float], name: str, change: str) -> None:
    known = len(service.bulk_records())

    def waiting() -> bool:
        return all(record.kind != "re-sync" for record in service.bulk_records()[known:])

    service.execute(change)
    started = time.perf_counter()
    taken = _measure_while(service, stream, waiting, 0.2)
    report.line(f"{name}: commits until it was over", len(taken), "")
    report.line("  which took", time.perf_counter() - started, "s")
    report.percentiles(taken, "without", alone, indent="  ")


def _measure(service: BenchService, stream: socket.socket, done: threading.Event | None) -> list[float]:
    """Latencies of commits to the other table: SAMPLES of them, or as many as there are until `done`."""
    taken: list[float] = []
    insert = "insert into others select mark, mark from (values (%s)) as marks (mark)"
    with closing(commits(service, stream, insert)) as latencies:
        while len(taken) < SAMPLES if done is None else not done.is_set():
            taken.append(next(latencies))
    return taken
