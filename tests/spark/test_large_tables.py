"""What changes of large tables cost devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.op import OpId
from headwater.pipeline.jobs import BulkJobs
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.lost_slots import outrun
from tests.support.model_device import parse_ops
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CONFIG = auto_streams(notes="SELECT * FROM notes WHERE bucket = auth.user_id()", others="SELECT * FROM others")

WATCHED = 50  # commits to the other table while a change is taken in


@pytest.fixture(params=[10_000, pytest.param(100_000, marks=pytest.mark.long)])
def rows(request: pytest.FixtureRequest) -> int:
    """How many rows the large table has."""
    number: int = request.param
    return number


def fill(source: SourceDb, rows: int) -> None:
    """A table of so many rows in ten buckets, and a small one."""
    source.execute("create table notes (id text primary key, bucket text, body text, code text not null)")
    source.execute(
        f"insert into notes select i::text, 'b' || i % 10, 'body ' || i, 'c' || i from generate_series(1, {rows}) i"
    )
    source.execute("create unique index by_code on notes (code)")
    source.execute("create table others (id text primary key)")
    source.execute("insert into others values ('first')")


@pytest.fixture
def followed(deploy: Deploy, source_db: SourceDb, rows: int) -> Deployment:
    """Such a source, with a replicator."""
    fill(source_db, rows)
    return deploy(CONFIG).start()


@pytest.fixture
def limited(
    postgres_with: Callable[..., EmbeddedPostgres], bulk: BulkJobs, tmp_path: Path, rows: int
) -> Iterator[Deployment]:
    """The same on a server that gives a slot up that holds much log."""
    source = SourceDb(postgres_with(max_slot_wal_keep_size="64MB", max_wal_size="2GB"), "postgres")
    fill(source, rows)
    deployment = Deployment(source, tmp_path / "store", CONFIG, bulk)
    try:
        yield deployment.start()
    finally:
        deployment.close()
        source.connection.close()


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


def put_since(deployment: Deployment, upto: int) -> list[str]:
    """Ids of the notes that devices were sent after this checkpoint: nothing but PUTs of each once."""
    end, ops = deployment.caught_up(), []
    for bucket in {name for user in range(10) for name in deployment.buckets(f"b{user}")}:
        at, more = OpId(upto), True
        while more:
            chunk = deployment.reader.chunk(bucket, at, OpId(end))
            ops += parse_ops(chunk.ops)
            at, more = chunk.next_after, chunk.more
    notes = [op for op in ops if op["object_type"] == "notes"]
    assert {op["op"] for op in notes} == {"PUT"}
    ids = [str(op["object_id"]) for op in notes]
    assert len(ids) == len(set(ids))
    return ids


def test_a_column_with_a_constant_costs_its_rows_and_another_identity_nothing(
    followed: Deployment, source_db: SourceDb, rows: int
) -> None:
    upto = followed.caught_up()
    assert change(followed, "alter table notes add column extra text default 'filled'") == rows
    assert len(put_since(followed, upto)) == rows
    for identity in ("full", "using index by_code", "default"):
        assert change(followed, f"alter table notes replica identity {identity}") == 0
    source_db.execute("update notes set body = 'after' where id = '7'; delete from notes where id = '8'")
    shown = followed.rows("b7")
    assert sum(table == "notes" for table, _ in shown) == rows // 10
    assert shown["notes", "7"] == {"id": "7", "bucket": "b7", "body": "after", "code": "c7", "extra": "filled"}
    assert ("notes", "8") not in followed.rows("b8")
    followed.close()
    assert followed.problems() == []


def test_of_a_lost_slot_devices_get_what_differs(limited: Deployment, rows: int) -> None:
    before, upto = limited.op_count(), limited.caught_up()
    limited.stop()
    limited.source.execute("update notes set body = 'changed' where id::int % 100 = 0")
    outrun(limited.source)
    limited.start()
    wait_until(lambda: settled(limited), "the comparison to end")
    assert limited.op_count() - before == rows // 100
    assert sorted(put_since(limited, upto)) == sorted(str(number) for number in range(100, rows + 1, 100))
    assert sum(row.get("body") == "changed" for row in limited.rows("b0").values()) == rows // 100
    assert limited.kinds().count("snapshot") == 1
    limited.close()
    assert limited.problems() == []
