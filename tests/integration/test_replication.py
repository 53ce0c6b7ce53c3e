"""A commit in Postgres reaches the store: snapshot on Spark, then the live stream, on a real Postgres."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fix_headwater import Deploy, read_bucket
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import ModelBucket, contents
from tests.support.sync_configs import OWN_NOTES, auto_streams

SHARED = auto_streams(
    lists="SELECT * FROM lists WHERE owner = auth.user_id()",
    todos="SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())",
)


def notes(source: SourceDb, identity: str = "default") -> None:
    source.execute("create table notes (id text primary key, owner text not null, body text, n int)")
    source.execute(f"alter table notes replica identity {identity}")


def truth(source: SourceDb, owner: str) -> dict[tuple[str, str], dict[str, object]]:
    rows = source.fetch("select id, owner, body, n from notes where owner = %s", owner)
    return {("notes", r[0]): {"id": r[0], "owner": r[1], "body": r[2], "n": r[3]} for r in rows}


def test_snapshot_equals_sql(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute(
        "insert into notes select i::text, 'u' || i % 3, repeat('x', i % 700), i from generate_series(1, 20000) i"
    )
    deployment = deploy(OWN_NOTES).start()
    for user in ("u0", "u1", "u2"):
        assert deployment.rows(user) == truth(source_db, user)
    (record,) = deployment.bulk_records()
    assert record.tasks >= 1
    assert record.application
    assert record.rows == 20000
    assert deployment.snapshots[-1].rows == 20000
    assert deployment.snapshots[-1].tasks == record.tasks


def test_duplicates_are_numbered_alike(deploy: Deploy, source_db: SourceDb) -> None:
    """Copies on both sides of a partition's border, read by different tasks, and then the same rows streamed."""
    rows = "select 'a', repeat(md5((i % 100)::text), 40) from generate_series(1, 6000) i"
    source_db.execute("create table notes (owner text, body text); alter table notes replica identity full")
    source_db.execute(f"insert into notes {rows}")
    deployment = deploy(OWN_NOTES).start()
    from_snapshot = deployment.rows("a")
    assert len(from_snapshot) == 6000
    source_db.execute("delete from notes")
    assert deployment.rows("a") == {}
    source_db.execute(f"insert into notes {rows}")
    assert deployment.rows("a") == from_snapshot


@pytest.mark.parametrize("identity", ["default", "full"])
def test_unchanged_toasted_value_stays(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    notes(source_db, identity)
    source_db.execute("alter table notes alter body set storage external")
    source_db.execute("insert into notes values ('1', 'a', repeat('toast', 4000), 1)")
    deployment = deploy(OWN_NOTES).start()
    source_db.execute("insert into notes values ('2', 'a', repeat('bread', 4000), 1)")
    source_db.execute("update notes set n = 2")
    assert deployment.rows("a") == truth(source_db, "a")
    source_db.execute("update notes set id = 'x' || id, owner = 'b'")
    assert deployment.rows("b") == truth(source_db, "b")
    assert deployment.rows("a") == {}


def test_device_converges_after_truncate(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 3000) i")
    deployment = deploy(OWN_NOTES).start()
    first = deployment.caught_up()
    (name,) = deployment.buckets("a")
    device = ModelBucket()
    read_bucket(deployment.reader, name, first, device)
    source_db.execute("truncate notes; insert into notes values ('1', 'a', 'y', 1)")
    upto = deployment.caught_up()
    assert contents([read_bucket(deployment.reader, name, upto, device)]) == truth(source_db, "a")


def test_withdrawn_membership_removes_rows(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table lists (id text primary key, owner text)")
    source_db.execute("create table todos (id text primary key, list_id text, title text)")
    source_db.execute("create table members (list_id text, user_id text, primary key (list_id, user_id))")
    source_db.execute("insert into lists values ('l1', 'a'), ('l2', 'b')")
    source_db.execute("insert into members values ('l1', 'a'), ('l2', 'b'), ('l2', 'a')")
    source_db.execute("insert into todos select i::text, 'l' || i % 2 + 1, 'todo ' || i from generate_series(1, 20) i")
    deployment = deploy(SHARED).start()
    assert len(deployment.rows("a")) == 21
    assert len(deployment.rows("b")) == 11
    source_db.execute("delete from members where list_id = 'l2' and user_id = 'a'")
    assert {key for key in deployment.rows("a") if key[0] == "todos"} == {("todos", str(i)) for i in range(2, 21, 2)}
    source_db.execute("update members set user_id = 'c' where list_id = 'l2'")
    assert len(deployment.rows("b")) == 1
    assert len(deployment.rows("c")) == 10
    source_db.execute("truncate members")
    assert deployment.rows("c") == {}


def test_transaction_of_many_chunks(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    deployment = deploy(OWN_NOTES).start()
    source_db.execute(
        "insert into notes select i::text, 'a', 'x', i from generate_series(1, 23456) i; update notes set n = -n"
    )
    assert deployment.rows("a") == truth(source_db, "a")


def test_restart_continues(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 10) i")
    deployment = deploy(OWN_NOTES).start()
    deployment.rows("a")
    deployment.stop()
    before = deployment.op_count_now()
    source_db.execute("insert into notes values ('while away', 'a', 'y', 0)")
    deployment.start()
    assert deployment.rows("a") == truth(source_db, "a")
    assert deployment.op_count() == before + 1
    assert len(deployment.bulk_records()) == 1


def test_rebuilt_store_with_device_ahead(deploy: Deploy, source_db: SourceDb, tmp_path: Path) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 100) i")
    first = deploy(OWN_NOTES).start()
    upto = first.caught_up()
    (name,) = first.buckets("a")
    device = read_bucket(first.reader, name, upto)
    first.close()
    source_db.execute("delete from notes where n < 50")
    second = deploy(OWN_NOTES, tmp_path / "second").start()
    upto = second.caught_up()
    assert list(second.buckets("a")) == [name]
    assert contents([read_bucket(second.reader, name, upto, device)]) == truth(source_db, "a")


def test_edited_access_reads_nothing_again(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 100) i")
    deployment = deploy(OWN_NOTES).start()
    before = deployment.op_count()
    names = set(deployment.buckets("a"))
    deployment.stop()
    deployment.yaml = OWN_NOTES.replace("auth.user_id()", "auth.parameter('person')")
    deployment.start()
    assert deployment.op_count() == before
    assert set(deployment.buckets("zz", person="a")) == names
    assert deployment.rows("zz", person="a") == truth(source_db, "a")
    assert deployment.rows("a") == {}


OWNERS = 10

ITEMS = auto_streams(items="SELECT id, label FROM items WHERE owner = auth.user_id()")


@pytest.fixture
def items(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table items (id text primary key, owner text, label text, touched timestamptz)")
    return source_db


def fill(source: SourceDb, rows: int) -> None:
    source.execute(
        f"insert into items select i::text, 'u' || i % {OWNERS}, 'item ' || i from generate_series(1, {rows}) i"
    )


@pytest.mark.parametrize("rows", [10_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_invisible_updates_write_no_op(deploy: Deploy, items: SourceDb, rows: int) -> None:
    fill(items, rows)
    deployment = deploy(ITEMS).start()
    ops = deployment.op_count()
    assert ops == rows + OWNERS, "one op a row, and the one that each bucket begins with"
    items.execute("update items set touched = now()")
    assert deployment.op_count() == ops
    items.execute("update items set touched = null, label = 'seen' where id = '7'")
    assert deployment.op_count() == ops + 1
    devices = {f"u{n}": deployment.buckets(f"u{n}") for n in range(OWNERS)}
    assert sum(len(bucket.rows) for buckets in devices.values() for bucket in buckets.values()) == rows
    items.execute("truncate items")
    assert deployment.op_count() - (ops + 1) <= 2 * OWNERS
    assert all(deployment.rows(user) == {} for user in devices)
    items.execute("insert into items values ('new', 'u3', 'after', null)")
    assert deployment.rows("u3") == {("items", "new"): {"id": "new", "label": "after"}}


def test_changes_in_one_transaction_are_one_op(deploy: Deploy, items: SourceDb) -> None:
    fill(items, 20)
    deployment = deploy(ITEMS).start()
    ops = deployment.op_count()
    with items.connection.transaction():
        for number in range(5):
            items.execute("update items set label = %s where id = '3'", f"label {number}")
    assert deployment.op_count() == ops + 1
    assert deployment.rows("u3")["items", "3"]["label"] == "label 4"
    with items.connection.transaction():
        items.execute("insert into items values ('gone', 'u3', 'x', null)")
        items.execute("update items set label = 'y' where id = 'gone'")
        items.execute("delete from items where id = 'gone'")
        items.execute("update items set label = 'back' where id = '3'")
        items.execute("update items set label = 'label 4' where id = '3'")
    assert deployment.op_count() == ops + 1, "nothing is different for a device"
    with items.connection.transaction():
        items.execute("delete from items where id = '3'")
        items.execute("insert into items values ('3', 'u3', 'anew', null)")
    assert deployment.op_count() == ops + 2
