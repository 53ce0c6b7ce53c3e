"""Several databases in one store: what each costs that idles, and whether others wait for one that is busy, down, or
compared with its rows anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import islice, takewhile

import psycopg

from headwater.embedded.postgres import EmbeddedPostgres, find_binaries
from headwater.oplog.lsn import parse_lsn
from tests.bench import data, report
from tests.bench.latency import commits, read_until
from tests.bench.service import BenchService, Meter, bench_service
from tests.bench.start import memory, memory_when_idle
from tests.support.fix_service import connection_to
from tests.support.waiting import wait_until

_ROWS = 10
_IDLE_SECONDS = 30.0
_MEASURED_SECONDS = 20.0  # at most
_LARGE = 10_000
"""Rows of a large transaction."""
_COMPARED = 300_000
_INSERT = "insert into items (owner, title, n) values ('u1', %s, 0)"
_SAME = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT row_id() AS id, owner, title FROM app.public.items WHERE owner = auth.user_id()
"""


def cost(count: int) -> None:
    """`count` databases with the same table, as shards of one tag, and with a table of its own each."""
    for same in (True, False):
        kind = "shards with the same table" if same else "databases with a table each"
        report.heading(f"{count} {kind}, {_ROWS} rows in each")
        slots = str(count + 10)
        with bench_service(max_replication_slots=slots, max_wal_senders=slots, max_connections="1000") as service:
            _idle(service, count, same)


def _idle(service: BenchService, count: int, same: bool) -> None:
    names = [f"s{number}" for number in range(count)]
    tables = ["items" if same else f"items_{name}" for name in names]
    for name, table in zip(names, tables, strict=True):
        _make(service.postgres, name, *_table(table), f"insert into {table} {_first_rows(_ROWS)}")
    before = _connections(service)
    began = time.perf_counter()
    service.serve(_SAME if same else _one_each(names), replication={"connections": [
        {**connection_to(service.postgres.port, name), **({"tag": "app", "shard": name} if same else {"tag": name})}
        for name in names
    ]}, spark={"idle_minutes": 1})  # fmt: skip
    service.wait_ready(1800)
    report.line("until all are followed", time.perf_counter() - began, "s")
    stream = service.stream("u1")
    read_until(stream, b"checkpoint_complete")
    report.line("memory of the service, Spark warm", memory(service) / 1e6, "MB")
    report.line("the same, Spark stopped", memory_when_idle(service) / 1e6, "MB")
    report.line("connections to each database", (_connections(service) - before) / count, "")
    with Meter(service.pid).measure() as used:
        time.sleep(_IDLE_SECONDS)  # nothing is waited for: this long, nothing happens
    report.line("CPU of the service while nothing happens", 100 * used.cpu / used.seconds, "% of a core")
    insert = f"insert into {tables[-1]} (owner, title, n) values ('u1', %s, 0)"
    taken = list(islice(commits(service, stream, insert, names[-1]), 101))[1:]
    report.line("commit to line, p50", report.percentile(taken, 0.5) * 1000, "ms")
    report.line("commit to line, p99", report.percentile(taken, 0.99) * 1000, "ms")
    stream.close()


def beside(samples: int, *, apart: bool = False) -> None:
    """Commit to line of one database, alone and beside two others that are busy, down or compared anew. With `apart`,
    each has a process of its own instead of a thread."""
    kind = "process" if apart else "thread"
    report.heading(f"commit to line of one of three databases, a {kind} for each, {samples} commits")
    with ExitStack() as stack:
        service = stack.enter_context(bench_service())
        # A second server, which can be down on its own
        other = EmbeddedPostgres(service.directory / "other", find_binaries(), {"wal_level": "logical"})
        servers = {"a": service.postgres, "b": service.postgres, "c": stack.enter_context(other)}
        for name, postgres in servers.items():
            _make(postgres, name, *_table("items"), f"insert into items {_first_rows(_ROWS)}")
        _execute(service.postgres, "b", f"insert into items {_first_rows(_COMPARED)}")
        connections = [{**connection_to(each.port, tag), "tag": tag} for tag, each in servers.items()]
        processes = servers if apart else ()
        service.serve(_one_each(servers, "items"), apart=processes, replication={"connections": connections})
        service.wait_ready()
        stream = service.stream("u1")
        read_until(stream, b"checkpoint_complete")

        def settle() -> None:
            _settle(service, servers)

        def measured() -> list[float]:
            until = time.monotonic() + _MEASURED_SECONDS
            some = islice(commits(service, stream, _INSERT, "a"), samples)
            return list(takewhile(lambda _: time.monotonic() < until, some))

        measured()
        settle()
        alone = measured()
        report.percentiles(alone, "alone", alone, "alone: ")
        single = f"insert into items {_first_rows(1)}"
        _told("another commits single rows, as fast as it can", _meanwhile(service, single, measured), alone)
        settle()
        large = f"insert into items {_first_rows(_LARGE)}"
        _told(f"another commits {_LARGE:,} rows at once, again and again", _meanwhile(service, large, measured), alone)
        settle()
        _execute(service.postgres, "b", "alter table items rename column title to name")
        _told("another is compared anew", measured(), alone)
        settle()
        other.stop()
        _told("another is down", measured(), alone)
        report.percentiles(measured(), "alone", alone, "alone, again: ")
        stream.close()


def _settle(service: BenchService, databases: Mapping[str, EmbeddedPostgres]) -> None:
    """Wait until the store has every commit made so far, and no table is compared."""
    ends = {}
    for name, postgres in databases.items():
        with psycopg.connect(postgres.dsn(name), autocommit=True) as conn:
            ends[name] = parse_lsn(conn.execute("select pg_current_wal_insert_lsn()::text").fetchall()[0][0])
            conn.execute("select pg_logical_emit_message(false, 'headwater', 'ping')")

    def settled() -> bool:
        newest = service.reader().newest()
        assert newest is not None
        reached = all(newest.checkpoint.lsns[name] >= end for name, end in ends.items())
        with service.store() as store:
            return reached and not any(table.resync for name in databases for table in store.tables(name))

    wait_until(settled, "all sources to be followed up to here", 300)


def _told(what: str, taken: list[float], alone: list[float]) -> None:
    report.percentiles(taken, "alone", alone, f"{what}: ")


def _meanwhile(service: BenchService, statement: str, measured: Callable[[], list[float]]) -> list[float]:
    """What is measured while the database b commits a statement again and again."""
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(service.postgres.dsn("b"), autocommit=True) as conn:
            while not done.is_set():
                conn.execute(statement.encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return measured()
    finally:
        done.set()
        thread.join()


def _make(postgres: EmbeddedPostgres, name: str, *statements: str) -> None:
    """A database with a publication."""
    _execute(postgres, "postgres", f"create database {name}")
    _execute(postgres, name, *statements, "create publication headwater for all tables")


def _execute(postgres: EmbeddedPostgres, database: str, *statements: str) -> None:
    with psycopg.connect(postgres.dsn(database), autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def _table(name: str) -> list[str]:
    return [data.TABLE.replace("create table items", f"create table {name}")]


def _first_rows(count: int) -> str:
    """Rows that the measured device does not get."""
    return f"(owner, title, n) select 'u2', 'title ' || md5(i::text), i from generate_series(1, {count}) i"


def _one_each(tags: Iterable[str], table: str = "") -> str:
    streams = "".join(
        f"  {tag}:\n    auto_subscribe: true\n"
        f"    query: SELECT * FROM {tag}.public.{table or f'items_{tag}'} WHERE owner = auth.user_id()\n"
        for tag in tags
    )
    return f"config: {{edition: 3}}\nstreams:\n{streams}"


def _connections(service: BenchService) -> int:
    counted = "select count(*)::text from pg_stat_activity where backend_type in ('client backend', 'walsender')"
    return int(service.fetch(counted))
