"""The first snapshot: rows a second from start to visible, beside a bare COPY of the same table."""

from __future__ import annotations

import time

import psycopg
from psycopg import pq

from tests.bench import data, report
from tests.bench.service import BenchService, Meter, bench_service


def run(rows: int) -> None:
    report.heading(f"first snapshot, {rows:,} small rows")
    with bench_service(fsync="off") as service:
        service.execute(data.TABLE, data.insert(rows), "vacuum analyze items")
        service.execute("create publication headwater for table items")
        yardstick = _bare_copy(service)
        service.serve(data.STREAMS)
        with Meter(service.pid).measure() as usage:
            service.wait_ready()
        record = service.bulk_record()
        read = record.finished - record.started
        report.line("with the start of Spark", rows / usage.seconds, "rows/s", "bare COPY", yardstick)
        report.line("slot to staged, Spark's start included", rows / read, "rows/s", "bare COPY", yardstick)
        report.usage(usage, rows / 1e6)
        _warm(service, rows, yardstick)


def _warm(service: BenchService, rows: int, yardstick: float) -> None:
    """With Spark warm: after a lost slot, the running replicator compares all rows with what it has."""
    before = service.bulk_record()
    with Meter(service.pid).measure() as usage:
        service.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots",
            "alter table items add column extra int",
            data.insert(1, rows),
        )
        while (record := service.bulk_record()) == before:
            time.sleep(0.05)
    seconds = record.finished - record.started
    report.line("Spark warm, the same rows compared anew", rows / seconds, "rows/s", "bare COPY", yardstick)
    report.usage(usage, rows / 1e6)


def _bare_copy(service: BenchService) -> float:
    with psycopg.connect(service.postgres.dsn("bench")) as conn:
        started = time.perf_counter()
        conn.pgconn.exec_(b"copy items to stdout")
        rows = 0
        while True:
            size, _ = conn.pgconn.get_copy_data(0)
            if size <= 0:
                break
            rows += 1
        seconds = time.perf_counter() - started
        while (result := conn.pgconn.get_result()) is not None:
            assert result.status == pq.ExecStatus.COMMAND_OK
        return rows / seconds
