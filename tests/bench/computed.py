"""Computed tables: from the commit to a table that a query reads to the line with the new result, beside a plain row of
the same transaction; and many queries of all kinds at once."""

from __future__ import annotations

import time
from hashlib import md5

from tests.bench import data, report
from tests.bench.latency import read_until
from tests.bench.service import BenchService, Meter, bench_service

_TOTALS = """
tables:
  totals:
    query: SELECT n % {accounts} AS account, count(*) AS rows, sum(n) AS total FROM items GROUP BY 1
    key: [account]
    refresh: {{after: [items], least: 1s, timeout: 10m}}
streams:
  totals:
    auto_subscribe: true
    query: SELECT account, rows, total FROM totals
  marked:
    auto_subscribe: true
    query: SELECT * FROM items WHERE owner = 'marked'
config: {{edition: 3}}
"""
_ACCOUNTS = 100_000
_CHANGED = 100
_MORE = 100_000_000  # a multiple of _ACCOUNTS

_QUERIES = [
    "SELECT owner AS k, count(*) AS v FROM items GROUP BY 1",
    "SELECT owner AS k, max(created_at) AS v FROM items GROUP BY 1",
    "SELECT DISTINCT owner AS k, done AS v FROM items WHERE n < 10",
    "SELECT id AS k, rank() OVER (PARTITION BY owner ORDER BY n DESC) AS v FROM items ORDER BY n DESC LIMIT 100",
    "SELECT a.id AS k, b.title AS v FROM items a LEFT JOIN items b ON b.n = a.n + 1 WHERE a.n < 500",
    "WITH RECURSIVE r (k, v) AS (SELECT 0, 0::bigint UNION ALL SELECT k + 1, v + k FROM r WHERE k < 99) TABLE r",
]
_KINDS = 30
_QUIET = 5.0


def run(rows: int) -> None:
    """Over `rows` rows, of which some are changed."""
    report.heading(f"computed table: {_ACCOUNTS:,} groups of {rows:,} rows, {_CHANGED} rows changed")
    last = rows - 1
    with bench_service() as service:
        first = (data.TABLE, data.insert(rows), "vacuum analyze items", "create publication headwater for table items")
        began = time.perf_counter()
        service.serve_ready(_TOTALS.format(accounts=_ACCOUNTS), *first)
        stream = service.stream("u1")
        read_until(stream, _sum_with(service, last))
        report.line("start to the first result on a device", time.perf_counter() - began, "s")
        _until_quiet(service)
        change = f"update items set owner = 'marked', n = n + {_MORE} where n > {last - _CHANGED}"
        with Meter(service.pid).measure() as used:
            service.execute(change)
            committed = time.perf_counter()
            read_until(stream, f"title {md5(str(last).encode()).hexdigest()}".encode())
            plain = time.perf_counter() - committed
            read_until(stream, _sum_with(service, last))
            taken = time.perf_counter() - committed
        report.line("commit to line, new sums", taken, "s", "a plain row", plain)
        report.line("the query alone", _query_alone(service), "s")
        report.line("CPU of the service meanwhile", used.cpu, "s")
        stream.close()
    _many(rows // 10)


def _many(rows: int) -> None:
    report.heading(f"{_KINDS} computed tables over {rows:,} rows")
    tables = "".join(
        f"  t{number}:\n    query: {_QUERIES[number % len(_QUERIES)]}\n    key: [k]\n"
        "    refresh: {after: [items], least: 1s}\n"
        for number in range(_KINDS)
    )
    streams = "".join(
        f"  t{number}:\n    auto_subscribe: true\n    query: SELECT k, v FROM t{number}\n" for number in range(_KINDS)
    )
    with bench_service() as service:
        service.serve_ready(
            f"config: {{edition: 3}}\ntables:\n{tables}streams:\n{streams}",
            *(data.TABLE, data.insert(rows), "vacuum analyze items", "create publication headwater for table items"),
        )
        stream = service.stream("u1")
        _until_quiet(service)
        began = time.perf_counter()
        service.execute("insert into items (owner, title, n) values ('a-new-owner', 'x', -1)")
        read_until(stream, b"a-new-owner")
        report.line("commit to line, the first of them", time.perf_counter() - began, "s")
        _until_quiet(service)
        report.line("until all are as new", time.perf_counter() - began - _QUIET, "s")
        stream.close()


def _sum_with(service: BenchService, number: int) -> bytes:
    """The sum of the group that a row is in, as it is in the line of a device."""
    return service.fetch(f"select sum(n)::text from items where n % {_ACCOUNTS} = {number % _ACCOUNTS}").encode()


def _query_alone(service: BenchService) -> float:
    began = time.perf_counter()
    service.fetch(f"select count(*)::text from (select n % {_ACCOUNTS}, count(*), sum(n) from items group by 1) q")
    return time.perf_counter() - began


def _until_quiet(service: BenchService) -> None:
    """Wait until no checkpoint came for _QUIET seconds: nothing says when a refresh finds no difference."""
    newest, since = service.reader().newest(), time.monotonic()
    while time.monotonic() - since < _QUIET:
        time.sleep(0.2)
        now = service.reader().newest()
        assert now is not None
        if newest is None or now.checkpoint.op_id != newest.checkpoint.op_id:
            newest, since = now, time.monotonic()
