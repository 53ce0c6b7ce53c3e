"""How transactions arrive: in the order of their commits, whole, and in bounded memory."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.op import OpId
from headwater.replication.meters import Figures
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store
from headwater.telemetry.trace_choice import Flushed
from tests.support.fix_headwater import HASTY, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.memory import forget_peak, peak
from tests.support.model_device import parse_ops
from tests.support.row_truth import device_rows, truth
from tests.support.sync_configs import NOTES, auto_streams
from tests.support.waiting import wait_until

Connection = psycopg.Connection[tuple[Any, ...]]
Writers = Callable[[], Connection]

BIG = "repeat('toast', 4000)"
ALL_SENT = (
    "select r.sent_lsn >= pg_current_wal_lsn() from pg_stat_replication r join pg_stat_activity using (pid)"
    " where datname = current_database()"
)


def create(source: SourceDb, identity: str = "default") -> None:
    source.execute("create table notes (id text primary key, body text, n int)")
    source.execute(f"alter table notes alter column body set storage external, replica identity {identity}")
    source.execute(f"insert into notes select i::text, {BIG}, i from generate_series(1, 9) i")


@pytest.fixture
def writers(source_db: SourceDb) -> Iterator[Writers]:
    """More sessions, whose transactions last until they commit."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(source_db.dsn))


def test_commits_of_writers_are_stored_together(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    flushes: list[Flushed] = []
    goes_on = threading.Event()

    def note(flush: Flushed) -> None:
        flushes.append(flush)
        goes_on.wait(60)

    deployment = deploy(NOTES, figures=Figures(note), intervals=replace(HASTY, commit_delay=3.0)).start()
    for row in "abc":  # the last two are there when the first is stored
        source_db.execute(f"insert into notes values ('{row}', 'x', 0)")
        wait_until(lambda: bool(flushes), "the first")
    wait_until(lambda: source_db.fetch(ALL_SENT) == [(True,)], "the others to be sent")
    goes_on.set()
    wait_until(lambda: len(flushes) == 2, "the others")
    for number in range(5):
        source_db.execute(f"insert into notes values ('c{number}', 'x', 0)")
        source_db.execute("select pg_sleep(0.05)")  # a writer's own time, enough for a flush
    wait_until(lambda: sum(flush.transactions for flush in flushes) >= 8, "the five")
    assert [flush.transactions for flush in flushes] == [1, 2, 5]
    assert {f"c{number}" for number in range(5)} <= {row for _, row in deployment.rows("ann")}


@pytest.mark.parametrize("identity", ["default", "full"])
def test_savepoint_rollback(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    create(source_db, identity)
    deployment = deploy(NOTES).start()
    source_db.execute(
        "begin; insert into notes values ('kept', 'x', 0); savepoint a; update notes set n = n + 1;"
        " delete from notes where id = '1'; savepoint b; truncate notes; rollback to a;"
        " update notes set n = -1 where id = '2'; savepoint c; update notes set id = 'moved' where id = '3';"
        " release c; rollback to a; update notes set id = 'later' where id = '4'; commit"
    )
    assert device_rows(deployment) == truth(source_db, "notes")
    first, more = (
        "".join(f"savepoint s{i}; insert into notes values ('{row}{i}', 'x', {i}); " for i in range(100))
        for row in ("first", "more")
    )  # more than Postgres keeps at hand of one transaction
    source_db.execute(f"begin; {first} rollback to s50; {more} update notes set n = n + 1; rollback to s70; commit")
    source_db.execute(
        "do $$ begin for i in 1..200 loop begin"
        "   update notes set n = 1000 + i where id = '5'; insert into notes values ('sub' || i, 'x', i);"
        "   if i % 2 = 0 then raise division_by_zero; end if;"
        " exception when division_by_zero then null; end; end loop; end $$"
    )
    source_db.execute("begin; savepoint a; delete from notes; savepoint b; truncate notes; rollback")
    assert device_rows(deployment) == truth(source_db, "notes")


@pytest.mark.parametrize("identity", ["default", "full"])
def test_overlapping_transactions_in_commit_order(
    deploy: Deploy, source_db: SourceDb, writers: Writers, identity: str
) -> None:
    create(source_db, identity)
    deployment = deploy(NOTES).start()
    early, middle, late = writers(), writers(), writers()
    early.execute("update notes set n = 100 where id = '1'")
    middle.execute("update notes set n = 200 where id = '2'; insert into notes values ('m', 'x', 1)")
    late.execute("insert into notes values ('l', 'x', 1)")
    source_db.execute("update notes set n = 300 where id = '3'")
    assert device_rows(deployment) == truth(source_db, "notes")
    late.execute("update notes set id = 'l2' where id = 'l'")
    late.commit()
    assert device_rows(deployment) == truth(source_db, "notes")
    late.execute("delete from notes where id = 'l2'")
    early.execute("update notes set n = 301 where id = '3'")
    deployment.stop()
    late.commit()
    deployment.start()  # what began before the restart and ends after it comes whole
    assert device_rows(deployment) == truth(source_db, "notes")
    middle.commit()
    early.execute("update notes set id = 'moved', n = 0 where id = '2'")
    assert device_rows(deployment) == truth(source_db, "notes")
    early.commit()
    assert device_rows(deployment) == truth(source_db, "notes")


def test_changes_of_other_origin(deploy: Deploy, source_db: SourceDb, writers: Writers) -> None:
    create(source_db)
    deployment = deploy(NOTES).start()
    applying, name = writers(), f"elsewhere_{source_db.name}"
    applying.autocommit = True
    applying.execute("select pg_replication_origin_create(%s)", [name])
    try:
        applying.execute("select pg_replication_origin_session_setup(%s)", [name])
        with applying.transaction():
            applying.execute("select pg_replication_origin_xact_setup('0/ABC', now())")
            applying.execute("update notes set n = 50; insert into notes values ('from elsewhere', 'x', 1)")
        source_db.execute("update notes set n = 51 where id = '2'")
        with applying.transaction():  # positions of another cluster may run backwards
            applying.execute("select pg_replication_origin_xact_setup('0/ABB', '2001-01-01')")
            applying.execute("delete from notes where id = '3'")
        assert device_rows(deployment) == truth(source_db, "notes")
    finally:
        applying.execute("select pg_replication_origin_session_reset()")
        applying.execute("select pg_replication_origin_drop(%s)", [name])


@pytest.fixture
def preparing(postgres_with: Callable[..., EmbeddedPostgres]) -> Iterator[SourceDb]:
    """A database on a server that takes prepared transactions."""
    server = postgres_with(max_prepared_transactions="10")
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("create database preparing")
    database = SourceDb(server, "preparing")
    try:
        yield database
    finally:
        database.drop()


def test_prepared_transaction(preparing: SourceDb, deploy_on: Deploy) -> None:
    create(preparing)
    deployment = deploy_on(preparing, NOTES).start()
    preparing.execute(
        "begin; update notes set n = 1 where id = '1'; savepoint a; delete from notes where id = '2';"
        " rollback to a; insert into notes values ('first', 'x', 1); prepare transaction 'first'"
    )
    preparing.execute(f"begin; insert into notes values ('second', {BIG}, 2); prepare transaction 'second'")
    preparing.execute("begin; update notes set id = 'moved' where id = '4'; prepare transaction 'third'")
    preparing.execute("update notes set n = 50 where id = '5'")
    assert device_rows(deployment) == truth(preparing, "notes")
    preparing.execute("rollback prepared 'second'")
    preparing.execute("commit prepared 'third'")
    assert device_rows(deployment) == truth(preparing, "notes")
    deployment.stop()
    preparing.execute("insert into notes values ('meanwhile', 'x', 1)")
    deployment.start()
    assert device_rows(deployment) == truth(preparing, "notes")
    preparing.execute("commit prepared 'first'")
    assert device_rows(deployment) == truth(preparing, "notes")
    deployment.close()
    assert deployment.problems() == []


LONG = [pytest.mark.long, pytest.mark.timeout(1500)]
LARGE = {
    "insert": "insert into notes select 'new ' || i, i || repeat('x', {width}), i from generate_series(1, {rows}) i",
    "every kind": (
        "begin; insert into notes select 'new ' || i, i || repeat('x', {width}), i"
        " from generate_series(1, {rows} / 2) i;"
        " update notes set n = n + 1; delete from notes where n % 2 = 0; commit"
    ),
}
ALLOWED = 220 << 20
"""Bytes, of which 128 MB are the store's page cache. The text of the rows alone is as much."""


def sums(deployment: Deployment, bucket: str) -> tuple[int, int, int, int]:
    """Of what a new device has of a bucket: rows, the sum of `n`, different bodies and their length. It keeps no row as
    a whole, for there are many."""
    rows: dict[str, tuple[int, int, int]] = {}
    at, end, more = OpId(0), OpId(deployment.caught_up()), True
    while more:
        chunk = deployment.reader.chunk(bucket, at, end)
        for op in parse_ops(chunk.ops):
            if op["op"] == "PUT":
                row = json.loads(str(op["data"]))
                rows[str(op["object_id"])] = (row["n"], hash(row["body"]), len(row["body"]))
            elif op["op"] == "REMOVE":
                rows.pop(str(op["object_id"]), None)
        at, more = chunk.next_after, chunk.more
    bodies = {body for _, body, _ in rows.values()}
    return len(rows), sum(n for n, _, _ in rows.values()), len(bodies), sum(size for _, _, size in rows.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")
@pytest.mark.parametrize(
    ("kind", "rows", "width"),
    [
        pytest.param("insert", 25_000, 3_000, marks=pytest.mark.long),
        pytest.param("insert", 1_000_000, 300, marks=LONG),
        pytest.param("every kind", 1_000_000, 300, marks=LONG),
        pytest.param("insert", 2_000_000, 100, marks=LONG),
    ],
)
def test_large_transaction_in_bounded_memory(
    deploy: Deploy, source_db: SourceDb, kind: str, rows: int, width: int
) -> None:
    create(source_db)
    deployment = deploy(NOTES).start()
    ops = deployment.op_count()
    (bucket,) = deployment.buckets("a")
    before = forget_peak()
    source_db.execute(LARGE[kind].format(rows=rows, width=width))
    wait_until(lambda: deployment.op_count_now() > ops, "the transaction to arrive", 1200)
    deployment.caught_up()
    grown = peak() - before
    assert grown < ALLOWED, f"{grown >> 20} MB"
    (stored,) = open_store(SqliteAddress(str(deployment.directory))).store_stats().tables
    there = source_db.fetch("select count(*), sum(n), count(distinct body), sum(length(body)) from notes")
    assert [sums(deployment, bucket)] == there
    assert stored.rows == there[0][0]


CONFIG = auto_streams(parts='SELECT * FROM "part_%"')


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tables", [20, pytest.param(500, marks=pytest.mark.long)])
def test_transaction_over_many_tables(deploy: Callable[..., Deployment], source_db: SourceDb, tables: int) -> None:
    names = [f"part_{number}" for number in range(tables)]
    source_db.execute(";".join(f"create table {name} (id text primary key, n int)" for name in names))
    source_db.execute(f"insert into {names[7]} values ('kept', 1)")
    deployment = deploy(CONFIG, patience=600.0).start()
    assert deployment.rows("a") == {(names[7], "kept"): {"id": "kept", "n": 1}}
    ops = deployment.op_count()
    each = "insert into {0} values ('a', {1}), ('b', {1}), ('c', {1}); update {0} set n = n + 1 where id = 'b';"
    again = "delete from {0} where id = 'c';"
    statements = [each.format(*pair) for pair in zip(names, range(tables), strict=True)]
    statements += [again.format(name) for name in reversed(names)]
    source_db.execute(f"begin; {''.join(statements)} truncate {names[3]}; alter table {names[4]} add v int; commit")
    rows = deployment.rows("a")
    expected = {(name, "a"): {"id": "a", "n": n} for n, name in enumerate(names) if n not in {3, 4}}
    expected |= {(name, "b"): {"id": "b", "n": n + 1} for n, name in enumerate(names) if n not in {3, 4}}
    expected |= {(names[7], "kept"): {"id": "kept", "n": 1}}
    assert {key: row for key, row in rows.items() if key[0] != names[4]} == expected
    assert {key for key in rows if key[0] == names[4]} == {(names[4], "a"), (names[4], "b")}
    assert Counter(record.kind for record in deployment.bulk_records())["snapshot"] == 1
    assert deployment.op_count() - ops <= 2 * tables + 2  # what was in the table that was emptied goes again
