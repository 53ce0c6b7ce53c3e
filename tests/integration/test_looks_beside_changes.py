"""A look at the catalog shows one state of it, however fast somebody alters what is looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.source.catalog.published import PublishedTable, published_tables
from tests.support.changed_source import published_rows, settled
from tests.support.fix_headwater import Deploy, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


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
CHANGES = (
    "alter table first rename to resting; alter table second rename to first; alter table resting rename to second",
    "alter table counted rename n to m",
    "alter table counted rename m to n",
    f"alter table rooted detach partition moving; alter table other_root {ATTACH}",
    f"alter table other_root detach partition moving; alter table rooted {ATTACH}",
)
FILTERED = "alter publication headwater set table first, second, counted where (id <> 'no'), rooted, other_root"

CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries: [SELECT * FROM first, SELECT * FROM second, SELECT * FROM rooted, SELECT * FROM other_root]
"""
SHOWN = {f"public.{name}": "true" for name in ("first", "second", "rooted", "other_root")}


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

    threads = [threading.Thread(target=alter, args=(changes,)) for changes in (CHANGES[:3], CHANGES[3:])]
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


def test_a_look_beside_changes_is_of_one_state(source: SourceDb) -> None:
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


def test_services_that_start_beside_changes_come_to_the_truth(deploy: Deploy, source: SourceDb) -> None:
    deployment = deploy(CONFIG).start()
    deployment.stop()
    with altered_all_the_time(source):
        for _ in range(3):
            deployment.start()
            source.execute("update first set n = n + 1; update rooted set n = n + 1")
            deployment.stop()
    deployment.start()
    wait_until(lambda: settled(deployment) and deployment.rows("a") == published_rows(source, SHOWN), "the truth")
    deployment.close()
    assert deployment.problems() == []
