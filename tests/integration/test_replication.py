"""A commit in Postgres reaches the store: snapshot on Spark, then the live stream, on a real Postgres."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.support.fix_headwater import Deploy, Deployment, read_bucket, wait_until
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import ModelBucket, contents

NOTES = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
"""

SHARED = """
config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    query: SELECT * FROM lists WHERE owner = auth.user_id()
  todos:
    auto_subscribe: true
    query: SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())
"""


def notes(source: SourceDb, identity: str = "default") -> None:
    source.execute("create table notes (id text primary key, owner text not null, body text, n int)")
    source.execute(f"alter table notes replica identity {identity}")


def truth(source: SourceDb, owner: str) -> dict[tuple[str, str], dict[str, object]]:
    rows = source.fetch("select id, owner, body, n from notes where owner = %s", owner)
    return {("notes", r[0]): {"id": r[0], "owner": r[1], "body": r[2], "n": r[3]} for r in rows}


def bodies(deployment: Deployment, user: str) -> list[str]:
    return sorted(str(row["body"]) for row in deployment.rows(user).values())


def test_the_snapshot_equals_sql_truth_and_was_read_by_spark(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute(
        "insert into notes select i::text, 'u' || i % 3, repeat('x', i % 700), i from generate_series(1, 20000) i"
    )
    deployment = deploy(NOTES).start()
    for user in ("u0", "u1", "u2"):
        assert deployment.rows(user) == truth(source_db, user)
    (record,) = deployment.bulk_records()
    assert record.tasks >= 1
    assert record.application
    assert record.rows == 20000
    assert deployment.snapshots[-1].rows == 20000
    assert deployment.snapshots[-1].tasks == record.tasks


@pytest.mark.parametrize("identity", ["default", "full", "using index notes_key"])
def test_changes_arrive_whatever_the_replica_identity(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    source_db.execute("create table notes (id text not null, owner text not null, body text, n int, primary key (id))")
    source_db.execute("create unique index notes_key on notes (id, owner)")
    source_db.execute(f"alter table notes replica identity {identity}")
    source_db.execute("insert into notes select i::text, 'a', 'body ' || i, i from generate_series(1, 50) i")
    deployment = deploy(NOTES).start()
    source_db.execute("insert into notes values ('new', 'a', null, null)")
    source_db.execute("update notes set body = 'changed' where n < 10")
    source_db.execute("delete from notes where n > 40")
    source_db.execute("update notes set id = 'renamed' where id = '11'")
    source_db.execute("update notes set id = 'swap' where id = '12'; insert into notes values ('12', 'a', 'other', 12)")
    assert deployment.rows("a") == truth(source_db, "a")
    source_db.execute("update notes set owner = 'b' where n % 2 = 0")
    assert deployment.rows("a") == truth(source_db, "a")
    assert deployment.rows("b") == truth(source_db, "b")
    source_db.execute("truncate notes")
    assert deployment.rows("a") == {}
    source_db.execute("insert into notes values ('1', 'a', 'again', 1)")
    assert deployment.rows("a") == truth(source_db, "a")


@pytest.mark.parametrize("how", ["replica identity nothing", "no key"])
def test_rows_without_identity_get_ids_of_their_own_and_a_truncate_removes_them(
    deploy: Deploy, source_db: SourceDb, how: str
) -> None:
    source_db.execute("create table notes (owner text, body text)")
    if how == "replica identity nothing":
        source_db.execute("alter table notes replica identity nothing")
    source_db.execute("insert into notes select 'a', 'same' from generate_series(1, 3)")
    deployment = deploy(NOTES).start()
    source_db.execute("insert into notes values ('a', 'same'), ('a', 'new')")
    assert bodies(deployment, "a") == ["new", "same", "same", "same", "same"]
    source_db.execute("truncate notes; insert into notes values ('a', 'later')")
    assert bodies(deployment, "a") == ["later"]


def test_identical_rows_are_counted(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (owner text, body text)")
    source_db.execute("alter table notes replica identity full")
    source_db.execute("insert into notes select 'a', 'same' from generate_series(1, 3)")
    deployment = deploy(NOTES).start()
    assert bodies(deployment, "a") == ["same"] * 3
    source_db.execute("delete from notes where ctid = (select min(ctid) from notes)")
    assert bodies(deployment, "a") == ["same"] * 2
    source_db.execute("insert into notes values ('a', 'same')")
    assert bodies(deployment, "a") == ["same"] * 3
    source_db.execute("update notes set body = 'other' where ctid = (select min(ctid) from notes)")
    assert bodies(deployment, "a") == ["other", "same", "same"]
    source_db.execute("delete from notes")
    assert bodies(deployment, "a") == []


def test_copies_are_numbered_alike_by_snapshot_and_stream(deploy: Deploy, source_db: SourceDb) -> None:
    """Copies on both sides of a partition's border, read by different tasks, and then the same rows streamed."""
    rows = "select 'a', repeat(md5((i % 100)::text), 40) from generate_series(1, 6000) i"
    source_db.execute("create table notes (owner text, body text); alter table notes replica identity full")
    source_db.execute(f"insert into notes {rows}")
    deployment = deploy(NOTES).start()
    from_snapshot = deployment.rows("a")
    assert len(from_snapshot) == 6000
    source_db.execute("delete from notes")
    assert deployment.rows("a") == {}
    source_db.execute(f"insert into notes {rows}")
    assert deployment.rows("a") == from_snapshot


@pytest.mark.parametrize("identity", ["default", "full"])
def test_an_unchanged_toasted_value_stays(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    notes(source_db, identity)
    source_db.execute("alter table notes alter body set storage external")
    source_db.execute("insert into notes values ('1', 'a', repeat('toast', 4000), 1)")
    deployment = deploy(NOTES).start()
    source_db.execute("insert into notes values ('2', 'a', repeat('bread', 4000), 1)")
    source_db.execute("update notes set n = 2")
    assert deployment.rows("a") == truth(source_db, "a")
    source_db.execute("update notes set id = 'x' || id, owner = 'b'")
    assert deployment.rows("b") == truth(source_db, "b")
    assert deployment.rows("a") == {}


def test_a_toasted_value_that_nobody_here_has_is_fetched(deploy: Deploy, source_db: SourceDb) -> None:
    """A row that enters a publication's row filter comes as an INSERT without its untouched value."""
    source_db.needs(15, "row filters of publications")
    notes(source_db)
    source_db.execute("alter table notes alter body set storage external")
    source_db.execute("alter table notes add visible boolean not null default false")
    source_db.execute("alter table notes replica identity full")
    source_db.execute("alter table notes replica identity default")
    source_db.execute("create publication headwater for table notes where (n > 0)")
    source_db.execute("alter table notes drop visible")
    source_db.execute("alter table notes drop constraint notes_pkey, add primary key (id, n)")
    source_db.execute("insert into notes values ('1', 'a', repeat('toast', 4000), 0)")
    deployment = deploy(NOTES).start()
    assert deployment.rows("a") == {}
    source_db.execute("update notes set n = 5")
    assert deployment.rows("a") == truth(source_db, "a")
    source_db.execute("update notes set n = 6; update notes set n = 0; update notes set n = 7; delete from notes")
    assert deployment.rows("a") == {}


def test_a_write_that_changes_nothing_selected_writes_no_op(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 1000) i")
    deployment = deploy(NOTES.replace("SELECT *", "SELECT id, body")).start()
    before = deployment.op_count()
    source_db.execute("update notes set n = n + 1")
    assert deployment.op_count() == before


def test_truncate_is_one_op_a_bucket(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'u' || i % 10, 'x', i from generate_series(1, 5000) i")
    deployment = deploy(NOTES).start()
    before = deployment.op_count()
    source_db.execute("truncate notes")
    assert deployment.op_count() == before + 10
    assert deployment.rows("u1") == {}


def test_a_device_half_way_converges_after_truncate_and_reload(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 3000) i")
    deployment = deploy(NOTES).start()
    first = deployment.caught_up()
    (name,) = deployment.buckets("a")
    device = ModelBucket()
    read_bucket(deployment.reader, name, first, device)
    source_db.execute("truncate notes; insert into notes values ('1', 'a', 'y', 1)")
    upto = deployment.caught_up()
    assert contents([read_bucket(deployment.reader, name, upto, device)]) == truth(source_db, "a")


def test_withdrawing_a_membership_removes_the_rows_it_gave(deploy: Deploy, source_db: SourceDb) -> None:
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


def test_transactions_with_savepoints_and_interleaved_commits_end_right(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    deployment = deploy(NOTES).start()
    with psycopg.connect(source_db.dsn) as one, psycopg.connect(source_db.dsn) as two:
        one.execute("insert into notes values ('1', 'a', 'one', 1)")
        two.execute("insert into notes values ('2', 'a', 'two', 2)")
        one.execute("savepoint s")
        one.execute("insert into notes values ('3', 'a', 'lost', 3)")
        one.execute("rollback to s")
        one.execute("insert into notes values ('4', 'a', 'kept', 4)")
        two.execute("update notes set n = 22 where id = '2'")
        two.commit()
        one.execute("update notes set n = 11 where id = '1'")
        one.commit()
    assert deployment.rows("a") == truth(source_db, "a")


def test_a_transaction_of_many_chunks_is_applied_whole(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    deployment = deploy(NOTES).start()
    source_db.execute(
        "insert into notes select i::text, 'a', 'x', i from generate_series(1, 23456) i; update notes set n = -n"
    )
    assert deployment.rows("a") == truth(source_db, "a")


def test_a_restart_continues_where_the_store_stands(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 10) i")
    deployment = deploy(NOTES).start()
    deployment.rows("a")
    deployment.stop()
    before = deployment.op_count_now()
    source_db.execute("insert into notes values ('while away', 'a', 'y', 0)")
    deployment.start()
    assert deployment.rows("a") == truth(source_db, "a")
    assert deployment.op_count() == before + 1
    assert len(deployment.bulk_records()) == 1


@pytest.mark.parametrize(
    "change",
    [
        "alter table notes add column extra text default 'filled'",
        "alter table notes drop column n; alter table notes add column n int default 7",
        "alter table notes replica identity full",
        "drop table notes; create table notes (id text primary key, owner text, body text, n int)",
    ],
)
def test_a_changed_table_is_read_again_by_itself(deploy: Deploy, source_db: SourceDb, change: str) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 10) i")
    deployment = deploy(NOTES).start()
    source_db.execute(change)
    source_db.execute("insert into notes (id, owner, body, n) values ('new', 'a', 'y', 1)")
    expected = {key: row["n"] for key, row in truth(source_db, "a").items()}

    def shown() -> bool:
        rows = deployment.rows("a")
        filled = {row.get("extra") for row in rows.values()} == ({"filled"} if "filled" in change else {None})
        return filled and {key: row["n"] for key, row in rows.items()} == expected

    wait_until(shown, "the device to show what the source has")


def test_a_lost_slot_is_replaced_and_a_device_that_is_ahead_converges(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 100) i")
    deployment = deploy(NOTES).start()
    upto = deployment.caught_up()
    (name,) = deployment.buckets("a")
    device = read_bucket(deployment.reader, name, upto)
    deployment.stop()
    source_db.lose_slots()
    source_db.execute("delete from notes where n < 50")
    ops = deployment.op_count_now()
    deployment.start()
    wait_until(lambda: deployment.rows("a") == truth(source_db, "a"), "what was missed to be found")
    assert deployment.op_count() == ops + 49
    assert contents([read_bucket(deployment.reader, name, deployment.caught_up(), device)]) == truth(source_db, "a")


def test_a_store_built_again_serves_a_device_that_is_ahead(deploy: Deploy, source_db: SourceDb, tmp_path: Path) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 100) i")
    first = deploy(NOTES).start()
    upto = first.caught_up()
    (name,) = first.buckets("a")
    device = read_bucket(first.reader, name, upto)
    first.close()
    source_db.execute("delete from notes where n < 50")
    second = deploy(NOTES, tmp_path / "second").start()
    upto = second.caught_up()
    assert list(second.buckets("a")) == [name]
    assert contents([read_bucket(second.reader, name, upto, device)]) == truth(source_db, "a")


def test_editing_who_gets_rows_reads_nothing_again(deploy: Deploy, source_db: SourceDb) -> None:
    notes(source_db)
    source_db.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 100) i")
    deployment = deploy(NOTES).start()
    before = deployment.op_count()
    names = set(deployment.buckets("a"))
    deployment.stop()
    deployment.yaml = NOTES.replace("auth.user_id()", "auth.parameter('person')")
    deployment.start()
    assert deployment.op_count() == before
    assert set(deployment.buckets("zz", person="a")) == names
    assert deployment.rows("zz", person="a") == truth(source_db, "a")
    assert deployment.rows("a") == {}
