"""A table whose buckets hold rows of others too is emptied row by row: at once for devices, some at a time for us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.oplog.transform import DraftOp
from headwater.replication.tables import changes
from headwater.storage.sqlite.flush import SqliteFlush
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(all='SELECT * FROM "item_%"')
SHOWN = {"public.item_%": "true"}
ROWS, AT_ONCE = 100, 8

WAYS = {
    "dropped": "drop table item_1",
    "not published any more": "alter publication headwater drop table item_1",
    "truncated": "truncate item_1",
}


def given(deploy: Deploy, source: SourceDb, *, on_postgres: bool) -> Deployment:
    for table in ("item_1", "item_2"):
        source.execute(f"create table {table} (id text primary key, body text)")
        source.execute(f"insert into {table} select i::text, 'body' from generate_series(1, {ROWS}) i")
    source.execute("create publication headwater for table item_1, item_2")
    return deploy(CONFIG, on_postgres=on_postgres).start()


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
@pytest.mark.parametrize("way", WAYS)
def test_removed_rows_go_in_one_checkpoint(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, way: str, *, on_postgres: bool
) -> None:
    monkeypatch.setattr(changes, "REMOVED_AT_ONCE", AT_ONCE)
    deployment = given(deploy, source_db, on_postgres=on_postgres)
    device = Device(deployment)
    seen = {len(device.rows())}
    source_db.execute(WAYS[way])

    def emptied() -> bool:
        seen.add(len(device.rows()))
        return seen >= {ROWS} and settled(deployment)

    wait_until(emptied, f"the rows to go of a table that was {way}")
    assert seen == {2 * ROWS, ROWS}
    assert device.rows() == published_rows(source_db, SHOWN)
    assert deployment.op_count() == 3 * ROWS + 1


def test_removed_rows_are_read_in_batches(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "REMOVED_AT_ONCE", AT_ONCE)
    read, append = SqliteFlush.table_members, SqliteFlush.append
    held, most, appended = 0, 0, list[int]()

    def reading(flush: SqliteFlush, table: int) -> Iterator[tuple[str, str, str | None]]:
        nonlocal held, most
        for row in read(flush, table):
            held += 1
            most = max(most, held)
            yield row

    def appending(flush: SqliteFlush, ops: list[DraftOp], buckets: dict[int, object]) -> None:
        nonlocal held
        held -= len(ops)
        appended.append(len(ops))
        append(flush, ops, buckets)  # type: ignore[arg-type]

    deployment = given(deploy, source_db, on_postgres=False)
    monkeypatch.setattr(SqliteFlush, "table_members", reading)
    monkeypatch.setattr(SqliteFlush, "append", appending)
    source_db.execute(WAYS["dropped"])
    wait_until(lambda: len(deployment.rows("a")) == ROWS, "the rows to go")
    assert (most, sum(appended), len(appended)) == (AT_ONCE, ROWS, -(-ROWS // AT_ONCE))
