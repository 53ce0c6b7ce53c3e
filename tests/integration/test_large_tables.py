"""What changes of tables with 100,000 rows cost devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from headwater.source.catalog import published_tables
from headwater.source.slot import slot_name
from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Deploy = Callable[..., Deployment]

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE bucket = auth.user_id()
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""

ROWS = 100_000
WATCHED = 50  # commits to the other table while a change is taken in


@pytest.fixture
def followed(deploy: Deploy, source_db: SourceDb) -> Deployment:
    """A table of 100,000 rows in ten buckets, and a small one."""
    source_db.execute("create table notes (id text primary key, bucket text, body text, code text not null)")
    source_db.execute(
        f"insert into notes select i::text, 'b' || i % 10, 'body ' || i, 'c' || i from generate_series(1, {ROWS}) i"
    )
    source_db.execute("create unique index by_code on notes (code)")
    source_db.execute("create table others (id text primary key)")
    source_db.execute("insert into others values ('first')")
    return deploy(CONFIG).start()


def settled(deployment: Deployment) -> bool:
    deployment.raise_failure()
    shapes = {t.relation.oid: t.shape for t in published_tables(deployment.source.connection, ["headwater"])}
    with deployment.store() as store:
        stored = store.tables("default")
    return {t.relation.oid: t.fingerprint for t in stored} == shapes and not any(t.resync for t in stored)


def change(deployment: Deployment, sql: str) -> int:
    """Change the table, while others are written; returns the number of ops that reach devices for it."""
    before = deployment.op_count()
    deployment.source.execute(sql)
    written = 0
    while not settled(deployment):
        if written < WATCHED:
            written += 1
            deployment.source.execute(f"insert into others values ({before + written})")
            assert ("others", str(before + written)) in deployment.rows("nobody"), "other tables go on meanwhile"
    return deployment.op_count() - before - written


def test_a_column_with_a_constant_costs_its_rows_and_another_identity_nothing(
    followed: Deployment, source_db: SourceDb
) -> None:
    assert change(followed, "alter table notes add column extra text default 'filled'") == ROWS
    for identity in ("full", "using index by_code", "default"):
        assert change(followed, f"alter table notes replica identity {identity}") == 0
    source_db.execute("update notes set body = 'after' where id = '7'; delete from notes where id = '8'")
    rows = followed.rows("b7")
    assert sum(table == "notes" for table, _ in rows) == ROWS // 10
    assert rows["notes", "7"] == {"id": "7", "bucket": "b7", "body": "after", "code": "c7", "extra": "filled"}
    assert ("notes", "8") not in followed.rows("b8")
    followed.close()
    assert followed.problems() == []


def test_of_a_lost_slot_devices_get_what_differs(followed: Deployment, source_db: SourceDb) -> None:
    before = followed.op_count()
    followed.stop()
    source_db.execute("select pg_drop_replication_slot(%s)", slot_name(followed.settings))
    source_db.execute("update notes set body = 'changed' where id::int % 100 = 0")
    followed.start()
    wait_until(lambda: settled(followed), "the comparison to end")
    assert followed.op_count() - before == ROWS // 100
    assert sum(row.get("body") == "changed" for row in followed.rows("b0").values()) == ROWS // 100
