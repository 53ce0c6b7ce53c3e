"""A change of a table is taken up while everything else goes on: the stream is not begun again, nor is other work."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.changed_source import Device, compared, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries: [SELECT * FROM first, SELECT * FROM second, SELECT * FROM third, SELECT * FROM others]
"""

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


def test_changes_of_tables_never_begin_the_stream_anew(
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
    followed.close()
    assert followed.problems() == []


def test_rows_of_a_renamed_schema_go_on_under_its_new_name(deploy: Deploy, source_db: SourceDb) -> None:
    """Before 16, Postgres itself goes on to tell the old one."""
    source_db.execute("create schema before")
    source_db.execute("create table before.items (id text primary key)")
    source_db.execute("create publication headwater for all tables")
    queries = "queries: [SELECT * FROM before.items, SELECT * FROM later.items]"
    deployment = deploy(f"config: {{edition: 3}}\nstreams:\n  all:\n    auto_subscribe: true\n    {queries}\n")
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
    deployment.close()
    assert deployment.problems() == []


def test_a_comparison_goes_on_when_another_table_changes(
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


def test_a_table_that_goes_while_it_is_compared_is_not_compared_any_more(
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
