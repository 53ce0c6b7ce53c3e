"""How costs grow: with the rows of a table, and with the tables of a source."""

from __future__ import annotations

import time

from tests.bench import data, report
from tests.bench.service import Meter, bench_service

TABLES = (1, 50, 500)
_ROWS_A_TABLE = 20


def run(sizes: list[int], tables: tuple[int, ...] = TABLES) -> None:
    """First snapshots of one table of each of `sizes`, and of as many small `tables`; then one row that is written."""
    report.heading("first snapshot of one table, until the store has it")
    for rows in sizes:
        filled = [data.TABLE, "create publication headwater for table items", data.insert(rows)]
        late = "insert into items (owner, title, n) values ('u1', 'late', 0)"
        _measure(f"{rows:,} rows", filled, data.STREAMS, late)
    report.heading(f"first snapshot of tables of {_ROWS_A_TABLE} rows, until the store has them")
    for count in tables:
        filled = data.small_tables(count, _ROWS_A_TABLE)
        _measure(f"{count:,} tables", filled, data.small_streams(count), "insert into t0 values (0, 'late')")


def _measure(name: str, filled: list[str], streams: str, late: str) -> None:
    with bench_service() as service:
        service.execute(*filled)
        service.serve(streams)
        with Meter(service.pid).measure() as usage:
            service.wait_ready()
        service.caught_up()
        began = time.perf_counter()
        service.execute(late)
        service.caught_up()
        report.line(name, usage.seconds, "s", "a row that is written afterwards", time.perf_counter() - began)
        report.line("  CPU time, with that of Spark's start", usage.cpu, "CPU-s")
        report.line("  peak memory, all processes", usage.peak / 1e6, "MB")
