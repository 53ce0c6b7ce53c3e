"""What we read from the catalog is what the stream says about the same tables."""

from __future__ import annotations

import pytest

from headwater.decode.pgoutput import Decoder
from headwater.oplog.change import Relation, ReplicaIdentity
from headwater.replication.tables.live import as_streamed
from headwater.source.catalog.publications import PublicationError
from headwater.source.catalog.published import PublishedTable, load_types, published_tables
from headwater.source.connect import connect
from tests.support.fix_postgres import SourceDb


def from_catalog(db: SourceDb, *publications: str) -> dict[str, PublishedTable]:
    with connect(db.settings()) as conn:
        found = published_tables(conn, publications or ("headwater",))
    return {table.relation.name: table for table in found}


def from_stream(db: SourceDb, *statements: str) -> dict[str, Relation]:
    db.execute("select pg_create_logical_replication_slot('peek', 'pgoutput')")
    db.execute("set synchronous_commit = on")  # else the slot does not see the commit yet
    for statement in statements:
        db.execute(statement)
    payloads = db.fetch(
        "select data from pg_logical_slot_get_binary_changes('peek', null, null,"
        " 'proto_version', '1', 'publication_names', 'headwater')"
    )
    messages = Decoder().decode([bytes(row[0]) for row in payloads])
    return {message.name: message for message in messages if isinstance(message, Relation)}


TABLES = {
    "keyed": (
        """create table keyed (a int, gone int, id uuid primary key default gen_random_uuid(), v varchar(20));
           alter table keyed drop column gone""",
        "(a) values (1)",
    ),
    "two_keys": (
        """create table two_keys (b text, x int, a int, primary key (b, a));
           alter table two_keys add y numeric(9, 2)""",
        "values ('b', 1, 2)",
    ),
    "by_index": (
        """create table by_index (id int primary key, code text not null, note text);
           create unique index by_code on by_index (code) include (note);
           alter table by_index replica identity using index by_code""",
        "values (1, 'x')",
    ),
    "lost_index": (
        """create table lost_index (id int primary key, code text not null);
           create unique index lost_code on lost_index (code);
           alter table lost_index replica identity using index lost_code; drop index lost_code""",
        "values (1, 'x')",
    ),
    "everything": (
        "create table everything (id int primary key, v int[]); alter table everything replica identity full",
        "values (1, '{1}')",
    ),
    "nothing": (
        "create table nothing (id int primary key); alter table nothing replica identity nothing",
        "values (1)",
    ),
    "keyless": ("create table keyless (id int)", "values (1)"),
    "deferred": ("create table deferred (id int primary key deferrable)", "values (1)"),
    "computed": (
        "create table computed (id int primary key, twice int generated always as (id * 2) stored, z int)",
        "values (1)",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_catalog_matches_stream_description(source_db: SourceDb, name: str) -> None:
    create, row = TABLES[name]
    source_db.execute(create)
    source_db.execute("create publication headwater for all tables")
    streamed = from_stream(source_db, f"insert into {name} {row}")
    assert as_streamed(from_catalog(source_db)[name].relation) == streamed[name]


def test_partitioned_table_published_via_root(source_db: SourceDb) -> None:
    source_db.execute(
        "create table event (id int, day date, primary key (id, day)) partition by range (day);"
        "create table event_a partition of event for values from ('2024-01-01') to ('2025-01-01');"
        "create table event_b (day date not null, gone int, id int not null); alter table event_b drop gone;"
        "alter table event attach partition event_b for values from ('2025-01-01') to ('2026-01-01');"
        "create publication headwater for table event with (publish_via_partition_root)"
    )
    table = from_catalog(source_db)["event"]
    assert [leaf.name for leaf in table.leaves] == ["event_a", "event_b"]
    assert table.relation == from_stream(source_db, "insert into event values (1, '2025-05-05')")["event"]


def test_partitions_published_by_themselves(source_db: SourceDb) -> None:
    source_db.execute(
        "create table event (id int, day date, primary key (id, day)) partition by range (day);"
        "create table event_a partition of event for values from ('2024-01-01') to ('2025-01-01');"
        "create publication headwater for table event"
    )
    table = from_catalog(source_db)["event_a"]
    assert [leaf.name for leaf in table.leaves] == ["event_a"]
    assert table.relation == from_stream(source_db, "insert into event values (1, '2024-05-05')")["event_a"]


def test_column_lists_and_row_filters(source_db: SourceDb) -> None:
    source_db.needs(15, "column lists and row filters of publications")
    source_db.execute(
        "create table note (id int primary key, secret text, title text);"
        "create publication headwater for table note (id, title) where (id > 10)"
    )
    table = from_catalog(source_db)["note"]
    assert table.row_filter == "(((id > 10)))"
    assert [column.name for column in table.relation.columns] == ["id", "title"]
    assert table.relation == from_stream(source_db, "insert into note values (11, 's', 't')")["note"]


def test_publications_add_up_or_contradict(source_db: SourceDb) -> None:
    source_db.needs(15, "column lists and row filters of publications")
    source_db.execute(
        "create table note (id int primary key, title text);"
        "create publication headwater for table note where (id > 10);"
        "create publication more for table note where (id < 5);"
        "create publication narrow for table note (id)"
    )
    assert from_catalog(source_db, "headwater", "more")["note"].row_filter == "(((id > 10)) or ((id < 5)))"
    with pytest.raises(PublicationError, match=r"different columns of one table \(public\.note\)"):
        from_catalog(source_db, "headwater", "narrow")


def test_single_table_is_loaded(source_db: SourceDb) -> None:
    source_db.execute(
        "create table event (id int, primary key (id)) partition by range (id); create table event_a partition of event"
        " for values from (0) to (10); create table note (id int primary key);"
        "create publication headwater for all tables with (publish_via_partition_root)"
    )
    tables = published_tables(source_db.connection, ["headwater"])
    assert [table.relation.name for table in tables] == ["event", "note"]
    for table in tables:
        assert published_tables(source_db.connection, ["headwater"], table.relation.oid) == [table]
    ((partition,),) = source_db.fetch("select 'event_a'::regclass::oid")
    assert published_tables(source_db.connection, ["headwater"], partition) == []


def test_missing_publication_names_remedy(source_db: SourceDb) -> None:
    with pytest.raises(PublicationError, match=r'publication "headwater" does not exist.*source prepare'):
        from_catalog(source_db)


SAME = ("insert into note values (2, 'b')", "analyze note", "create index on note (title)")


@pytest.mark.parametrize(
    "change",
    [
        "alter table note add extra int default 7",
        "alter table note drop title",
        "alter table note rename title to caption",
        "alter table note alter title type text using upper(title)",
        "alter table note replica identity full",
        "alter table note rename to notes",
        "alter publication headwater set (publish = 'insert')",
        "truncate note",
        *SAME,
    ],
)
def test_altered_table_changes_fingerprint(source_db: SourceDb, change: str) -> None:
    source_db.execute(
        "create table note (id int primary key, title text); create publication headwater for table note;"
        "insert into note values (1, 'a')"
    )
    (before,) = from_catalog(source_db).values()
    source_db.execute(change)
    (after,) = from_catalog(source_db).values()
    assert (before.fingerprint == after.fingerprint) is (change in SAME)


@pytest.mark.parametrize("column", ["span", "multispan", "span[]", "holder", "mood"])
def test_altered_type_changes_fingerprint(source_db: SourceDb, column: str) -> None:
    source_db.execute(
        "create type mood as enum ('ok', 'bad'); create type span as range (subtype = mood,"
        " multirange_type_name = multispan); create type holder as (x int, spans multispan[]);"
        f"create table note (id int primary key, v {column}); create table other (id int primary key, v int);"
        "create publication headwater for table note, other"
    )
    before = from_catalog(source_db)
    source_db.execute("alter type mood rename to humour")
    assert from_catalog(source_db) == before
    source_db.execute("alter type humour rename value 'ok' to 'good'")
    changed = from_catalog(source_db)
    assert not changed["note"].followed_on(before["note"].shape)
    source_db.execute("alter type humour rename value 'good' to 'ok'")
    back = from_catalog(source_db)["note"]
    assert not back.followed_on(before["note"].shape)
    assert not back.followed_on(changed["note"].shape)
    assert from_catalog(source_db)["other"] == before["other"]


def test_rewrite_keeps_shape(source_db: SourceDb) -> None:
    source_db.execute("create table note (id int primary key, title text); create publication headwater for table note")
    (before,) = from_catalog(source_db).values()
    source_db.execute("vacuum full note")
    (after,) = from_catalog(source_db).values()
    assert before.fingerprint != after.fingerprint
    assert after.followed_on(before.shape)


def test_pages_and_row_estimate(source_db: SourceDb) -> None:
    source_db.execute(
        "create table note (id int primary key, title text); create publication headwater for table note;"
        "insert into note select i, repeat('x', 100) from generate_series(1, 5000) i; analyze note"
    )
    (table,) = from_catalog(source_db).values()
    assert table.leaves[0].pages > 50
    assert table.estimated_rows == 5000
    assert table.relation.identity is ReplicaIdentity.DEFAULT


def test_types_are_loaded_with_their_parts(source_db: SourceDb) -> None:
    source_db.execute("create type mood as enum ('ok'); create domain feeling as mood; create table t (f feeling)")
    ((oid,),) = source_db.fetch("select 'feeling'::regtype::oid")
    with connect(source_db.settings()) as conn:
        types = load_types(conn, [oid])
    found = types.get(oid)
    assert found is not None
    assert types.get(found.element) is not None


@pytest.mark.parametrize(
    ("first", "second", "unseen"),
    [
        ("where (n < 5) with (publish = 'insert')", "where (n > 5)", ("update", "delete")),
        ("with (publish = 'insert, delete')", "where (n > 5) with (publish = 'update')", ("update", "truncate")),
        ("with (publish = 'insert')", "with (publish = 'update, delete, truncate')", ()),
        ("where (n < 5)", "where (n > 5)", ()),
        ("where (n < 5)", "", ()),
        ("where (n < 5) with (publish = 'insert')", "", ()),
    ],
)
def test_unseen_changes_of_other_publication(
    source_db: SourceDb, first: str, second: str, unseen: tuple[str, ...]
) -> None:
    source_db.needs(15, "row filters")
    source_db.execute("create table notes (id int, n int, primary key (id, n))")
    source_db.execute(f"create publication headwater for table notes {first}")
    source_db.execute(f"create publication more for table notes {second}")
    assert from_catalog(source_db, "headwater", "more")["notes"].unseen == unseen
