"""Rows and ops that are too large for devices: left out and on record, never a halt, the same by stream and in bulk."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headwater.oplog.limits import OP_LIMIT, ROW_LIMIT
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store
from headwater.storage.sql.stats import LeftOutRow
from tests.support.changed_source import unheard
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams

CONFIG = auto_streams(
    items="SELECT * FROM items WHERE owner IN (SELECT owner FROM items WHERE reader = auth.user_id())"
)

# A control character is one byte in a row, and seven in the row's JSON as a text within an op
LARGE_ROW = f"repeat('x', {ROW_LIMIT})"
JUST_BELOW = f"repeat('x', {ROW_LIMIT - 1000})"
LARGE_OP = f"repeat(E'\\x01', {OP_LIMIT // 7 + 1})"


def create(source: SourceDb, identity: str = "default") -> None:
    source.execute("create table items (id text primary key, owner text, reader text, body text, note text)")
    source.execute("alter table items alter column body set storage external")
    source.execute(f"alter table items replica identity {identity}")


def insert(source: SourceDb, row: str, body: str) -> None:
    source.execute(f"insert into items values ('{row}', 'o', 'u', {body})")


def shown(deployment: Deployment) -> set[str]:
    return {row_id for _, row_id in deployment.rows("u")}


def left_out(deployment: Deployment) -> dict[str, LeftOutRow]:
    (table,) = open_store(SqliteAddress(str(deployment.directory))).store_stats().tables
    assert table.left_out_rows == len(table.left_out)
    return {row.row_id: row for row in table.left_out}


def audit(deployment: Deployment) -> dict[str, Any]:
    return deployment.ask("audit")


def test_snapshot_and_stream_have_same_limits(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    create(source_db)
    for row, body in (("small", "'x'"), ("row", LARGE_ROW), ("op", LARGE_OP)):
        insert(source_db, row, body)
    deployment = deploy(CONFIG).start()
    assert shown(deployment) == {"small"}
    by_snapshot = left_out(deployment)
    assert by_snapshot.keys() == {"row", "op"}
    assert (by_snapshot["row"].ops, by_snapshot["op"].ops) == (0, 1)
    assert by_snapshot["row"].size > ROW_LIMIT
    assert by_snapshot["op"].size > OP_LIMIT
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [("row row" in text, "row op" in text) for text in sorted(said)] == [(True, False), (False, True)]
    assert all("public.items" in text and "xxxx" not in text for text in said)

    source_db.execute("delete from items")
    for row, body in (("small", "'x'"), ("row", LARGE_ROW), ("op", LARGE_OP)):
        insert(source_db, row, body)
    assert shown(deployment) == {"small"}
    assert left_out(deployment) == by_snapshot
    assert audit(deployment)["differences"] == {}


def test_row_below_limits_arrives(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    insert(source_db, "snapshot", JUST_BELOW)
    deployment = deploy(CONFIG).start()
    insert(source_db, "stream", JUST_BELOW)

    def whole(note: str | None) -> bool:
        bodies = source_db.fetch("select id, body from items")
        want = {("items", key): {"id": key, "owner": "o", "reader": "u", "body": body} for key, body in bodies}
        added = {} if note is None else {"note": note}
        shown = {key: {k: v for k, v in row.items() if v is not None} for key, row in deployment.rows("u").items()}
        return shown == {key: row | added for key, row in want.items()}

    assert whole(None)
    assert left_out(deployment) == {}
    before = deployment.op_count()
    # The stream does not bring the large value again
    source_db.execute("update items set note = 'n' where id = 'snapshot'")
    assert deployment.op_count() - before == 1
    source_db.execute("update items set note = 'n' where id = 'stream'")
    assert deployment.op_count() - before == 2
    assert whole("n")
    source_db.execute("update items set note = repeat('n', 2000) where id = 'stream'")
    assert shown(deployment) == {"snapshot"}
    assert left_out(deployment).keys() == {"stream"}
    source_db.execute("update items set note = 'n' where id = 'stream'")
    assert whole("n"), "also the large value, which the store had no copy of"
    assert left_out(deployment) == {}


def test_row_grows_and_shrinks(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    for row in ("a", "b"):
        insert(source_db, row, "'x'")
    deployment = deploy(CONFIG).start()
    for large in (LARGE_ROW, LARGE_OP):
        source_db.execute(f"update items set body = {large} where id = 'a'")
        assert shown(deployment) == {"b"}
        assert left_out(deployment).keys() == {"a"}
        # The stream does not bring the large value again; the store has no copy of it
        source_db.execute("update items set note = 'other' where id = 'a'")
        assert shown(deployment) == {"b"}
        source_db.execute("update items set id = 'c' where id = 'a'")
        assert shown(deployment) == {"b"}
        assert left_out(deployment).keys() == {"c"}
        source_db.execute("update items set body = 'small', id = 'a' where id = 'c'")
        assert shown(deployment) == {"a", "b"}
        assert left_out(deployment) == {}
    source_db.execute("update items set body = " + LARGE_ROW)
    source_db.execute("delete from items where id = 'a'")
    assert shown(deployment) == set()
    assert left_out(deployment).keys() == {"b"}


@pytest.mark.parametrize("identity", ["full", "nothing"])
def test_large_rows_without_key_are_counted(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    create(source_db, identity)
    source_db.execute("alter table items drop constraint items_pkey")
    insert(source_db, "row", LARGE_ROW)
    deployment = deploy(CONFIG).start()
    for row, body in (("row", LARGE_ROW), ("small", "'x'")):
        insert(source_db, row, body)
    assert shown(deployment) == {"small"}
    assert len(left_out(deployment)) == 2
    assert audit(deployment)["differences"] == {}
    if identity == "full":
        source_db.execute("delete from items where ctid = (select min(ctid) from items where id = 'row')")
        assert shown(deployment) == {"small"}
        assert len(left_out(deployment)) == 1
        assert audit(deployment)["differences"] == {}


def test_compare_respects_limits(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    for row, body in (("grows", "'x'"), ("shrinks", LARGE_ROW), ("goes", LARGE_ROW)):
        insert(source_db, row, body)
    deployment = deploy(CONFIG).start()
    with unheard(deployment):
        source_db.execute(f"update items set body = {LARGE_ROW} where id = 'grows'")
        source_db.execute("update items set body = 'x' where id = 'shrinks'")
        source_db.execute("delete from items where id = 'goes'")
    found = audit(deployment)
    assert {row["row"] for row in found["rows"]} == {"grows", "shrinks", "goes"}
    assert deployment.ask("resync")["state"] == "done"
    assert shown(deployment) == {"shrinks"}
    assert left_out(deployment).keys() == {"grows"}
    assert audit(deployment)["differences"] == {}


def test_new_config_respects_limits(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    for row, body in (("small", "'x'"), ("row", LARGE_ROW), ("op", LARGE_OP)):
        insert(source_db, row, body)
    deployment = deploy(CONFIG).start()
    deployment.redeploy(CONFIG.replace("SELECT * FROM items", "SELECT id, body FROM items"))
    assert shown(deployment) == {"small"}
    assert left_out(deployment)["op"].ops == 2  # the version before is kept for a while
    deployment.redeploy(CONFIG.replace("SELECT * FROM items", "SELECT id, owner FROM items"))
    assert shown(deployment) == {"small", "op"}
    assert audit(deployment)["differences"] == {}
