"""What a store keeps of a table's shape, from one look at the catalog and one replicator to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import PublishedTable
from headwater.storage.contract.store import StoredTable
from tests.support.changed_source import published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, plan_of, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries:
      - SELECT * FROM notes
      - SELECT * FROM others
"""

SHOWN = {"public.notes": "true", "public.others": "true"}

SOURCE = """
create table notes (id text primary key, n int);
create table others (id text primary key, n int);
insert into notes select i::text, i from generate_series(1, 20) i;
insert into others values ('1', 1)
"""


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute(SOURCE)
    return deploy(CONFIG).start()


def catalog(deployment: Deployment) -> dict[str, PublishedTable]:
    tables = wanted_tables(deployment.source.connection, deployment.settings, [plan_of(deployment.yaml)])
    return {table.relation.name: table for table in tables}


def kept(deployment: Deployment) -> dict[str, StoredTable]:
    with deployment.store() as store:
        return {table.relation.name: table for table in store.tables("default")}


def compared(deployment: Deployment) -> int:
    """How many comparisons there were."""
    return [record.kind for record in deployment.bulk_records()].count("re-sync")


def looks(deployment: Deployment) -> None:
    """Wait until the catalog was looked at: a change that has to be compared was found."""
    before = compared(deployment)
    deployment.source.execute("alter table others alter n type int using n + 1")
    wait_until(lambda: compared(deployment) == before + 1 and settled(deployment), "the other table to be compared")


@pytest.mark.parametrize("restarted", [False, True], ids=["followed", "restarted"])
def test_a_column_and_a_rewrite_that_came_apart_compare_nothing(deployment: Deployment, restarted: bool) -> None:
    source = deployment.source
    statements = ("vacuum full notes", "alter table notes alter n set default 7", "cluster notes using notes_pkey")
    for statement in statements:
        source.execute(statement)
        if restarted:
            deployment.stop()
            deployment.start()
        else:
            shape = catalog(deployment)["notes"].shape
            looks(deployment)
            assert kept(deployment)["notes"].fingerprint == shape
    assert compared(deployment) == (0 if restarted else len(statements))
    assert all(record.rows <= 1 for record in deployment.bulk_records()[1:])
    assert len(kept(deployment)["notes"].layouts) == 1
    source.execute("alter table notes alter n type int using -n")
    wait_until(lambda: deployment.rows("a") == published_rows(source, SHOWN), "values to be found changed")


def test_what_was_seen_of_columns_outlives_the_replicator(deployment: Deployment) -> None:
    source = deployment.source
    source.execute("alter table notes alter n set default 7")
    shape = catalog(deployment)["notes"].shape
    wait_until(lambda: kept(deployment)["notes"].fingerprint == shape, "the store to know the columns")
    deployment.stop()
    source.execute("vacuum full notes")
    deployment.start()
    deployment.caught_up()
    assert compared(deployment) == 0
    deployment.stop()
    source.execute("alter table notes alter n type int using -n")
    deployment.start()
    wait_until(lambda: settled(deployment) and compared(deployment) == 1, "the comparison to end")
    assert deployment.rows("a") == published_rows(source, SHOWN)


def test_what_is_read_by_parts_stays_together_while_columns_get_defaults(deployment: Deployment) -> None:
    source = deployment.source
    before = catalog(deployment)["notes"]
    source.execute("alter table notes alter n set default 7, alter n set statistics 3")
    assert catalog(deployment)["notes"].fingerprint == before.fingerprint
    source.execute("vacuum full notes")
    assert catalog(deployment)["notes"].fingerprint != before.fingerprint
