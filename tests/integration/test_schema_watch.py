"""The catalog is read consistently, and a change of a table neither restarts the stream nor other work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from headwater.source.catalog.published import PublishedTable, published_tables
from tests.support.changed_source import Device, compared, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(
    all=["SELECT * FROM first", "SELECT * FROM second", "SELECT * FROM third", "SELECT * FROM others"]
)

SHOWN = {f"public.{name}": "true" for name in ("first", "second", "third", "others")}


@pytest.fixture
def followed(deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture) -> Deployment:
    caplog.set_level(logging.INFO)
    for table in ("first", "second", "third", "others"):
        source_db.execute(f"create table {table} (id text primary key, n int, body text)")
        source_db.execute(f"insert into {table} select i::text, i, '{table} ' || i from generate_series(1, 50) i")
    source_db.execute("create publication headwater for all tables")
    return deploy(CONFIG).start()


def times_said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


SWAP = (
    "create table copy (like third including all); insert into copy select * from third; drop table third;"
    " alter table copy rename to third"
)

CHANGES = [
    "alter table first add x int default 7",
    "alter table first drop n",
    "alter table first rename body to text",
    "alter table first alter x type text",
    "alter table first replica identity full",
    "drop table first",
    "truncate first; alter table first add x int default 7; insert into first values ('a', 1, 'b')",
    "alter publication headwater rename to other; alter publication other rename to headwater",
    "alter table first rename to tmp; alter table second rename to first; alter table tmp rename to second",
    SWAP,
    "insert into third values ('new', 0, 'under the new name'); truncate second",
    f"{SWAP}; alter table third replica identity full",
    "delete from third where n < 9; alter table third rename to tmp",
    "insert into tmp values ('hidden', 0, 'from all'); alter table tmp rename to third",
]


def test_altered_tables_do_not_restart_stream(
    followed: Deployment, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(followed)
    for number, change in enumerate(CHANGES):
        if "first" in change and not source_db.fetch("select from pg_tables where tablename = 'first'"):
            source_db.execute("create table first (id text primary key, n int, body text)")
        source_db.execute(change)
        source_db.execute("insert into others values (%s, 0, 'meanwhile')", f"new {number}")
        if number % 2:
            source_db.execute("update second set body = body || 'x'")
        wait_until(
            lambda: settled(followed) and device.rows() == published_rows(source_db, SHOWN), f"the truth after {change}"
        )
    assert times_said(caplog, "following the stream from") == 0, "not since the start"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_renamed_schema_keeps_streaming(deploy: Deploy, source_db: SourceDb) -> None:
    """Before 16, Postgres itself goes on to tell the old one."""
    source_db.execute("create schema before")
    source_db.execute("create table before.items (id text primary key)")
    source_db.execute("create publication headwater for all tables")
    deployment = deploy(auto_streams(all=["SELECT * FROM before.items", "SELECT * FROM later.items"]))
    device = Device(deployment.start())
    source_db.execute("insert into before.items values ('1'), ('2')")
    wait_until(lambda: len(device.rows()) == 2, "the rows of before")
    source_db.execute("alter schema before rename to later")
    wait_until(lambda: settled(deployment), "the new name to be taken up")
    for change in (
        "insert into later.items values ('3')",
        "truncate later.items",
        "insert into later.items values ('4')",
    ):
        source_db.execute(change)
        wait_until(
            lambda: device.rows() == published_rows(source_db, {"later.items": "true"}), f"the truth after {change}"
        )


def test_compare_survives_change_of_other_table(
    followed: Deployment, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # comparisons wait for it to end
        source_db.execute("alter table first add x int default 7")
        wait_until(lambda: compared(followed), "the comparison to begin")
        source_db.execute("alter table second add x int default 8; drop table third")
        wait_until(lambda: marked(followed) == {"first", "second"}, "the other changes to be seen")
    wait_until(lambda: settled(followed), "all comparisons to end")
    assert followed.rows("a") == published_rows(source_db, SHOWN)
    assert times_said(caplog, "comparing as of") == 2, "one for each: none began anew"
    assert times_said(caplog, "following the stream from") == 0, "not since the start"


def test_compare_ends_when_table_is_dropped(
    followed: Deployment, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")
        source_db.execute("alter table first add x int default 7")
        wait_until(lambda: compared(followed), "the comparison to begin")
        source_db.execute("drop table first")
        wait_until(lambda: settled(followed), "nothing to be left to compare")
    assert followed.rows("a") == published_rows(source_db, SHOWN)
    assert times_said(caplog, "compared 0 rows") == 0
    assert times_said(caplog, "following the stream from") == 0, "not since the start"


def marked(deployment: Deployment) -> set[str]:
    with deployment.store() as store:
        return {table.relation.name for table in store.tables("default") if table.resync}


LOOKS = 100

TABLES = """
create table first (id text primary key, n int);
create table second (id text primary key, n int);
create table counted (id text primary key, n int, twice int generated always as (n * 2) stored);
create table rooted (id text, n int, primary key (id)) partition by hash (id);
create table other_root (id text, n int, primary key (id)) partition by hash (id);
create table moving partition of rooted for values with (modulus 1, remainder 0);
insert into first select i::text, i from generate_series(1, 20) i;
insert into second select i::text, -i from generate_series(1, 20) i;
insert into rooted select i::text, i from generate_series(1, 20) i
"""

ATTACH = "attach partition moving for values with (modulus 1, remainder 0)"

# each a transaction, and one that undoes it
BESIDE_CHANGES = (
    "alter table first rename to resting; alter table second rename to first; alter table resting rename to second",
    "alter table counted rename n to m",
    "alter table counted rename m to n",
    f"alter table rooted detach partition moving; alter table other_root {ATTACH}",
    f"alter table other_root detach partition moving; alter table rooted {ATTACH}",
)
FILTERED = "alter publication headwater set table first, second, counted where (id <> 'no'), rooted, other_root"

BESIDE_CONFIG = auto_streams(
    all=["SELECT * FROM first", "SELECT * FROM second", "SELECT * FROM rooted", "SELECT * FROM other_root"]
)
BESIDE_SHOWN = {f"public.{name}": "true" for name in ("first", "second", "rooted", "other_root")}


@contextmanager
def altered_all_the_time(source: SourceDb) -> Iterator[None]:
    """Two sessions alter tables, again and again."""
    over, failures = threading.Event(), list[BaseException]()

    def alter(changes: tuple[str, ...]) -> None:
        try:
            with psycopg.connect(source.dsn, autocommit=True) as conn:
                while not over.is_set():
                    for change in changes:
                        conn.execute(change.encode())
                        conn.execute("select pg_sleep(random() * 0.02)")
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=alter, args=(changes,)) for changes in (BESIDE_CHANGES[:3], BESIDE_CHANGES[3:])]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.fixture
def source(source_db: SourceDb) -> SourceDb:
    source_db.execute(TABLES)
    source_db.execute(
        "create publication headwater for table first, second, counted, rooted, other_root"
        " with (publish_via_partition_root)"
    )
    return source_db


def test_look_is_of_one_state(source: SourceDb) -> None:
    if source.connection.info.server_version >= 15_00_00:
        source.execute(FILTERED)
    states = set[str]()
    with altered_all_the_time(source), psycopg.connect(source.dsn, autocommit=True) as conn:
        for _ in range(LOOKS):
            tables = {table.relation.name: table for table in published_tables(conn, ["headwater"])}
            assert sorted(tables) == ["counted", "first", "other_root", "rooted", "second"]
            held = [leaf.name for name in ("rooted", "other_root") for leaf in tables[name].leaves]
            assert held == ["moving"]
            states |= {tables["rooted"].shape, as_computed(tables["counted"])}
    assert len(states) >= 4, "looks came between the changes"


def as_computed(table: PublishedTable) -> str:
    """What a generated column is computed from, which the table has a column for."""
    if table.locked:
        return ""
    computed = table.relation.columns[2].generated
    assert computed is not None
    assert computed.inputs == (table.relation.columns[1].name,)
    assert computed.expression == f"({computed.inputs[0]} * 2)"
    return computed.expression


def test_start_beside_ddl(deploy: Deploy, source: SourceDb) -> None:
    deployment = deploy(BESIDE_CONFIG).start()
    deployment.stop()
    with altered_all_the_time(source):
        for _ in range(3):
            deployment.start()
            source.execute("update first set n = n + 1; update rooted set n = n + 1")
            deployment.stop()
    deployment.start()
    wait_until(
        lambda: settled(deployment) and deployment.rows("a") == published_rows(source, BESIDE_SHOWN), "the truth"
    )
