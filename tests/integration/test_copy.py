"""Reading a table by parts under a snapshot: what changes in the midst of it is noticed, not read as something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings
from headwater.source.rows import copy as reading
from headwater.source.rows.copy import PageRange, TableChangedError, read_lines
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb

MEANWHILE = {
    "rewritten": "vacuum full items",
    "emptied": "truncate items",
    "altered": "alter table items drop body",
    "gone": "drop table items",
    "swapped": "alter table items rename to tmp; alter table secrets rename to items;"
    " alter table tmp rename to secrets",
    "swapped with one of other columns": "alter table items rename to tmp; alter table ledgers rename to items",
}


@pytest.fixture
def partition(source_db: SourceDb) -> PageRange:
    for table in ("items", "secrets"):
        source_db.execute(f"create table {table} (id text primary key, body text)")
        source_db.execute(f"insert into {table} select i::text, '{table}' from generate_series(1, 10) i")
    source_db.execute("create table ledgers (id text primary key, body text, n int)")
    source_db.execute("create publication headwater for all tables")
    tables = {table.relation.name: table for table in published_tables(source_db.connection, ["headwater"])}
    (leaf,) = tables["items"].leaves
    return PageRange(tables["items"], leaf, 0, None)


@pytest.fixture
def snapshot(source_db: SourceDb) -> Iterator[str]:
    with psycopg.connect(source_db.dsn) as keeper:
        keeper.execute("set transaction isolation level repeatable read")
        (name,) = keeper.execute("select pg_export_snapshot()").fetchall()[0]
        yield name


def test_part_is_of_snapshot(deploy: Deploy, source_db: SourceDb, partition: PageRange, snapshot: str) -> None:
    source_db.execute("insert into items values ('new', 'x'); update items set body = 'x'")
    found = [line for lines in read_lines(deploy("").settings, snapshot, partition) for line in lines]
    assert sorted(found) == sorted(f"{n}\titems" for n in range(1, 11))


def run_before_copy(monkeypatch: pytest.MonkeyPatch, source: SourceDb, change: str) -> None:
    """Run this once the table was looked at, before its rows are read."""
    copy = reading._copy

    def late(conn: psycopg.Connection, read: PageRange, room: int, told: Callable[[str], None]) -> Iterator[list[str]]:
        source.execute(change)
        yield from copy(conn, read, room, told)

    monkeypatch.setattr(reading, "_copy", late)


@pytest.mark.parametrize("change", MEANWHILE.values(), ids=MEANWHILE)
def test_changed_table_is_not_read(
    deploy: Deploy,
    source_db: SourceDb,
    partition: PageRange,
    snapshot: str,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    run_before_copy(monkeypatch, source_db, change)
    with pytest.raises(TableChangedError):
        list(read_lines(deploy("").settings, snapshot, partition))


@pytest.mark.parametrize("altered", [False, True])
def test_failing_row_is_named_unless_altered(
    deploy: Deploy,
    source_db: SourceDb,
    partition: PageRange,
    snapshot: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    altered: bool,
) -> None:
    """The connection is in the midst of a COPY then."""
    published = replace(partition.table, row_filter="(1 / (length(id) - 2) < 9)")
    run_before_copy(monkeypatch, source_db, "alter table items add more int" if altered else "select")
    read = replace(partition, table=published)
    expected = "was altered" if altered else "division by zero"
    with pytest.raises(TableChangedError if altered else reading.PartitionError, match=expected):
        list(read_lines(deploy("").settings, snapshot, read))


def test_swapped_table_is_not_read(
    deploy: Deploy, source_db: SourceDb, partition: PageRange, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = reading._check_unchanged
    looks = 0

    def swapping(conn: psycopg.Connection, source: SourceSettings, read: PageRange) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            source_db.execute(MEANWHILE["swapped"])
        check(conn, source, read)
        if looks == 1:
            source_db.execute(MEANWHILE["swapped"])

    monkeypatch.setattr(reading, "_check_unchanged", swapping)
    with pytest.raises(TableChangedError):
        list(read_lines(deploy("").settings, snapshot, partition))
