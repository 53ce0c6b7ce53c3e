"""The live stream: rows and transactions a second until visible, beside a bare drain of a slot over the same log."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

import psutil
import psycopg

from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.stream import ReplicationStream
from tests.bench import data, report
from tests.bench.service import BenchService, Meter, bench_service

WRITERS = 4


def run(transactions: int) -> None:
    """`transactions` of 100 rows; the other shapes in proportion."""
    with bench_service() as service:
        service.serve_ready(data.STREAMS, data.TABLE, "create publication headwater for table items")
        large, many = transactions * 25, transactions * 100
        _shape(service, f"one transaction of {large:,} rows", large, lambda: service.execute(data.insert(large)))
        _shape(service, f"{transactions:,} transactions of 100 rows", many, lambda: _hundreds(service, transactions))
        _single_rows(service, transactions * 5)


def _shape(service: BenchService, name: str, rows: int, write: Callable[[], None]) -> None:
    """Write while Headwater is stopped, so that what is measured is catching up; then drain the same log barely."""
    report.heading(f"live, {name}")
    service.caught_up()
    service.execute("select pg_create_logical_replication_slot('bare', 'pgoutput')")
    for child in _tree(service):
        child.suspend()
    write()
    end = parse_lsn(service.fetch("select pg_current_wal_lsn()::text"))
    with Meter(service.pid).measure() as usage:
        for child in _tree(service):
            child.resume()
        service.caught_up()
    bare = _drain(service, end)
    report.line("until visible", rows / usage.seconds, "rows/s", "bare drain", rows / bare)
    report.usage(usage, rows / 1e6)
    service.execute("select pg_drop_replication_slot('bare')")


def _tree(service: BenchService) -> list[psutil.Process]:
    return [p for p in psutil.Process(service.pid).children() if "replicate" in p.cmdline()]


def _drain(service: BenchService, end: Lsn) -> float:
    started = time.perf_counter()
    with ReplicationStream(service.source, "bare", Lsn(0), ["headwater"]) as stream:
        while stream.receive(1.0, more_expected=True).position < end:
            pass
    return time.perf_counter() - started


def _hundreds(service: BenchService, transactions: int) -> None:
    with psycopg.connect(service.postgres.dsn("bench"), autocommit=True) as conn:
        conn.execute("set synchronous_commit = off")
        for number in range(transactions):
            conn.execute(data.insert(100, number * 100).encode())


def _write_singles(dsn: str, rows: int, first: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for number in range(first, first + rows):
            row = [f"u{number % 10}", f"title {number}", number]
            conn.execute("insert into items (owner, title, n) values (%s, %s, %s)", row)


def _writers(service: BenchService, rows: int) -> float:
    dsn = service.postgres.dsn("bench")
    share = rows // WRITERS
    processes = [multiprocessing.Process(target=_write_singles, args=(dsn, share, n * share)) for n in range(WRITERS)]
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - started


def _single_rows(service: BenchService, rows: int) -> None:
    report.heading(f"live, {rows:,} single-row transactions by {WRITERS} writers")
    service.caught_up()
    with Meter(service.pid).measure() as usage:
        writing = _writers(service, rows)
        service.caught_up()
    replicators = _tree(service)
    for child in replicators:
        child.suspend()
    alone = _writers(service, rows)
    for child in replicators:
        child.resume()
    report.line("committed while followed", rows / writing, "commits/s", "writers alone", rows / alone)
    report.line("visible", rows / usage.seconds, "commits/s", "writers alone", rows / alone)
    report.usage(usage, rows / 1e6)
