"""Many schemas with the same table in one database: the start, memory, and seconds until what one of them is given
has been followed."""

from __future__ import annotations

import time

import psutil

from tests.bench import report
from tests.bench.latency import read_until
from tests.bench.service import BenchService, bench_service

_STREAMS = """
config: {edition: 3}
streams:
  todos:
    auto_subscribe: true
    query: SELECT * FROM "tenant_%".todos WHERE owner = auth.user_id()
"""
_ROWS = 10


def run(schemas: int) -> None:
    """`schemas` of one table with a few rows each."""
    chosen = f"tenant_{schemas * 437 // 500}"
    report.heading(f"{schemas} schemas with the same table")
    with bench_service() as service:
        for number in range(schemas):
            service.execute(*_schema(f"tenant_{number}"))
        began = time.perf_counter()
        service.serve_ready(_STREAMS, "create publication headwater for all tables")
        report.line("until following", time.perf_counter() - began, "s")
        report.line("memory of the service", _memory(service) / 1e6, "MB")
        stream = service.stream("u1")
        read_until(stream, b"checkpoint_complete")
        began = time.perf_counter()
        service.execute(f"insert into {chosen}.todos (owner, title) values ('u1', 'a row of {chosen}')")
        read_until(stream, f"a row of {chosen}".encode())
        report.line("from commit to line", time.perf_counter() - began, "s")
        stream.close()


def _schema(name: str) -> list[str]:
    return [
        f"create schema {name}",
        f"create table {name}.todos (id uuid primary key default gen_random_uuid(), owner text not null, title text)",
        f"insert into {name}.todos (owner, title) select 'u1', 'title ' || i from generate_series(1, {_ROWS}) i",
    ]


def _memory(service: BenchService) -> int:
    process = psutil.Process(service.pid)
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)])
