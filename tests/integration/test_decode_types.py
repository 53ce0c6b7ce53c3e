"""Every type reads the same from COPY and from the stream, and becomes its value."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg import pq, sql
from psycopg.pq.abc import PGconn

from headwater.decode.copytext import join_cells, split_line
from headwater.decode.pgoutput import Decoder
from headwater.decode.settings import SESSION_SETTINGS, settings_options, statements_for
from headwater.decode.types import BUILTIN_TYPES, TYPE_QUERY, TypeCatalog, TypeRow
from headwater.decode.values import row_converter
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.change import (
    UNCHANGED,
    Begin,
    Cells,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    ReplicaIdentity,
    Truncate,
    TypeInfo,
    Update,
)
from headwater.source.connect import connect
from headwater.source.slot import SnapshotKeeper, replication_connection
from headwater_rules.plan import ConversionOptions, Value
from tests.integration.type_cases import CASES, CUSTOM_TYPES
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import FAST, SourceDb, able_postgres, skip_without
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

ROWS = max(len(each.values) for each in CASES)

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def session(source_db: SourceDb) -> Iterator[Connection]:
    """A pinned session on a database whose own defaults would change what every second type prints."""
    defaults = {
        "TimeZone": "America/New_York",
        "DateStyle": "German",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "-10",
        "client_encoding": "LATIN1",
        "row_security": "on",
        "lc_monetary": "C.UTF-8",
        "statement_timeout": "20min",
        "idle_in_transaction_session_timeout": "20min",
        "idle_session_timeout": "20min",
    }
    for name, value in defaults.items():
        source_db.execute(f"alter database {source_db.name} set {name} = '{value}'")
    with psycopg.connect(
        source_db.dsn, autocommit=True, options=settings_options(), client_encoding="UTF8"
    ) as connection:
        connection.execute("set synchronous_commit = on")  # a slot shows only what is flushed
        yield connection


def follow(session: Connection) -> None:
    """Publish every table and begin to record the stream."""
    session.execute("create publication everything for all tables")
    session.execute("select pg_create_logical_replication_slot('recorder', 'pgoutput')")


def stream(session: Connection) -> list[Message]:
    """What was recorded since `follow`, decoded."""
    query = """
        select data from pg_logical_slot_get_binary_changes(
            'recorder', null, null, 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')
    """
    return Decoder().decode([data for (data,) in session.execute(query)])


def copy_lines(session: Connection, table: str) -> list[str]:
    """The rows of a table as COPY prints them."""
    with session.cursor() as cursor:
        query = sql.SQL("copy (select * from {} order by 1) to stdout").format(sql.Identifier(table))
        with cursor.copy(query) as copy:
            text = b"".join(bytes(chunk) for chunk in copy).decode()
    return text.removesuffix("\n").split("\n")


def type_catalog(session: Connection, columns: tuple[Column, ...]) -> TypeCatalog:
    missing = TypeCatalog().missing(column.type_oid for column in columns)
    rows = session.execute(TYPE_QUERY, {"oids": missing}).fetchall()
    return TypeCatalog.from_rows(cast("list[TypeRow]", rows))


def inserted(messages: list[Message]) -> list[Insert]:
    return [message for message in messages if isinstance(message, Insert)]


def whole(cells: Cells) -> tuple[str | None, ...]:
    """Cells none of which is unchanged."""
    assert UNCHANGED not in cells
    return cast("tuple[str | None, ...]", cells)


def fill(session: Connection) -> None:
    """A table `sample` with a column for each case and a row for each of their values; nulls where there are less."""
    skip_without("xml", session)
    session.execute(CUSTOM_TYPES)
    columns = ", ".join(f"c{number} {each.type}" for number, each in enumerate(CASES))
    session.execute(f"create table sample (id int primary key, {columns})")
    follow(session)
    places = ", ".join(["%s"] * (len(CASES) + 1))
    for row in range(ROWS + 1):
        literals = [each.values[row][0] if row < len(each.values) else None for each in CASES]
        session.execute(f"insert into sample values ({places})", [str(row), *literals])


def expected_rows() -> list[list[Value]]:
    return [
        [row, *[each.values[row][1] if row < len(each.values) else None for each in CASES]] for row in range(ROWS + 1)
    ]


def test_type_reads_alike_from_copy_and_stream(session: Connection) -> None:
    fill(session)
    lines = copy_lines(session, "sample")
    streamed = [whole(insert.new) for insert in inserted(stream(session))]
    assert [split_line(line, len(CASES) + 1) for line in lines] == streamed
    assert [join_cells(cells) for cells in streamed] == lines


def test_type_becomes_its_value(session: Connection) -> None:
    fill(session)
    changes = inserted(stream(session))
    columns = changes[0].relation.columns
    convert = row_converter(columns, type_catalog(session, columns), ConversionOptions())
    for change, expected in zip(changes, expected_rows(), strict=True):
        values = convert(whole(change.new))
        for each, value, wanted in zip(("id", *[each.type for each in CASES]), values, expected, strict=True):
            assert (each, type(value), value) == (each, type(wanted), wanted)


NO_INPUT = {  # Postgres makes their values itself, and takes none
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}


def test_all_builtin_types_are_cases(session: Connection) -> None:
    session.execute(CUSTOM_TYPES)
    built_in = session.execute(
        """select t.oid::regtype::text from pg_type t
           where t.typnamespace = 'pg_catalog'::regnamespace and t.typcategory <> 'A' and t.typrelid = 0
             and t.typtype in ('b', 'e', 'd', 'c', 'r', 'm')"""
    ).fetchall()
    covered = {
        name for each in CASES for (name,) in session.execute("select to_regtype(%s)::text", [bare_name(each.type)])
    }
    assert {name for (name,) in built_in} - covered == NO_INPUT
    kinds = session.execute(
        "select distinct typtype::text from pg_type where oid = any(%s::regtype[])", [sorted(covered)]
    ).fetchall()
    assert {kind for (kind,) in kinds} == {"b", "e", "d", "c", "r", "m"}


def bare_name(type_name: str) -> str:
    """Without its length."""
    name, _, rest = type_name.partition("(")
    return name + rest.partition(")")[2]


def assert_read_alike(session: Connection, table: str) -> list[Insert]:
    """What was streamed since `follow` is what COPY prints of the table."""
    changes = inserted(stream(session))
    assert [join_cells(whole(change.new)) for change in changes] == copy_lines(session, table)
    return changes


def test_array_reads_alike_from_copy_and_stream(session: Connection) -> None:
    skip_without("xml", session)
    session.execute(CUSTOM_TYPES)
    plain = [each for each in CASES if not each.type.endswith("[]")]
    columns = ", ".join(f"c{number} {each.type}[]" for number, each in enumerate(plain))
    session.execute(f"create table arrays (id int primary key, {columns})")
    follow(session)
    values = [
        sql.SQL("array[{}, null]::{}[]").format(
            sql.SQL(", ").join(sql.Literal(literal) for literal, _ in each.values), sql.SQL(each.type)
        )
        for each in plain
    ]
    session.execute(sql.SQL("insert into arrays values (1, {})").format(sql.SQL(", ").join(values)))
    session.execute("insert into arrays (id) values (2)")
    (change, _) = assert_read_alike(session, "arrays")
    types = type_catalog(session, change.relation.columns)
    converted = row_converter(change.relation.columns, types, ConversionOptions())(whole(change.new))
    for each, value in zip(plain, converted[1:], strict=True):
        assert len(json.loads(str(value))) == len(each.values) + 1, each.type


def test_special_values_read_alike(session: Connection) -> None:
    session.execute("create table measured as select i as a, i % 10 as b from generate_series(1, 1000) i")
    session.execute(
        "create statistics both_columns (ndistinct, dependencies, mcv) on a, b from measured; analyze measured"
    )
    session.execute(
        "create table inner_values (id int primary key, tree pg_node_tree, counted pg_ndistinct,"
        " depends pg_dependencies, common pg_mcv_list, described pg_class)",
    )
    follow(session)
    session.execute(
        "insert into inner_values select 1, (select adbin from pg_attrdef limit 1), stxdndistinct, stxddependencies,"
        " stxdmcv, (select c from pg_class c where relname = 'pg_class') from pg_statistic_ext_data",
    )
    (change,) = assert_read_alike(session, "inner_values")
    assert None not in (change.new[2], change.new[3], change.new[4], change.new[5])


EXTENSIONS = {
    "hstore": (14, [("hstore", r'"a"=>"1", "b \"c"=>NULL')]),
    "citext": (14, [("citext", "Mixed Case")]),
    "ltree": (14, [("ltree", "Top.Science.Physics"), ("lquery", "*.Phys*{1,2}"), ("ltxtquery", "a & b")]),
    "vector": (18, [("vector(3)", "[1,2.5,-3]"), ("halfvec(2)", "[1,0.5]"), ("sparsevec(5)", "{1:1,3:2}/5")]),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_extension_types_read_alike(name: str, laid_out: Path, tmp_path: Path) -> None:
    major, cases = EXTENSIONS[name]
    binaries = able_postgres(laid_out, major, {name})
    if binaries is None:
        pytest.skip(f"needs {name}, which no Postgres {major} here has")
    options = f"{settings_options()}"
    with (
        EmbeddedPostgres(tmp_path / "data", binaries, FAST) as server,
        psycopg.connect(server.dsn(), autocommit=True, options=options, client_encoding="UTF8") as session,
    ):
        session.execute("set synchronous_commit = on")
        session.execute(f"create extension {name}")
        columns = ", ".join(f"c{n} {kind}, a{n} {kind}[]" for n, (kind, _) in enumerate(cases))
        session.execute(f"create table extended (id int primary key, {columns})")
        follow(session)
        values = [
            sql.SQL("{}, array[{}, null]::{}[]").format(literal, literal, sql.SQL(kind))
            for kind, literal in ((kind, sql.Literal(text)) for kind, text in cases)
        ]
        session.execute(sql.SQL("insert into extended values (1, {})").format(sql.SQL(", ").join(values)))
        (change,) = assert_read_alike(session, "extended")
        types = type_catalog(session, change.relation.columns)
        converted = row_converter(change.relation.columns, types, ConversionOptions())(whole(change.new))
    assert converted[1::2] == [text for _, text in cases]
    assert [json.loads(str(value)) for value in converted[2::2]] == [[text, None] for _, text in cases]


def test_builtin_types_match_server(session: Connection) -> None:
    rows = session.execute(TYPE_QUERY, {"oids": list(BUILTIN_TYPES)}).fetchall()
    described = {
        oid: (schema, name, kind, element, delimiter) for oid, schema, name, kind, element, delimiter, *_ in rows
    }
    assert described == {
        oid: (each.schema, each.name, each.kind.value, each.element, each.delimiter)
        for oid, each in BUILTIN_TYPES.items()
    }


def test_rows_without_cells(session: Connection) -> None:
    session.execute("create table bare (); create table blank (t text)")
    follow(session)
    session.execute("insert into bare default values; insert into blank values (''), (null)")
    with session.cursor() as cursor, cursor.copy("copy bare to stdout") as copy:
        assert b"".join(bytes(chunk) for chunk in copy) == b"\n"
    assert [split_line(line, 1) for line in sorted(copy_lines(session, "blank"))] == [("",), (None,)]
    assert [insert.new for insert in inserted(stream(session))] == [(), ("",), (None,)]


def test_real_stream_is_decoded(session: Connection) -> None:
    session.execute("create type mood as enum ('happy')")
    session.execute("create table note (id int primary key, body text, feels mood)")
    session.execute("alter table note alter column body set storage external")
    session.execute("create table every (a int, b text); alter table every replica identity full")
    follow(session)
    body = "x" * 20_000
    with session.transaction():
        session.execute(f"insert into note values (1, '{body}', 'happy')")
        session.execute("update note set feels = null")
        session.execute("update note set id = 2")
        session.execute("delete from note")
    session.execute("select pg_logical_emit_message(false, 'hw', 'ping')")
    with session.transaction():
        session.execute("insert into every values (1, 'a')")
        session.execute("select pg_logical_emit_message(true, 'hw', 'look')")
        session.execute("update every set b = 'b'")
        session.execute("truncate note, every")

    messages = stream(session)
    relations = {message.name: message for message in messages if isinstance(message, Relation)}
    note, every = relations["note"], relations["every"]
    assert (note.schema, note.identity) == ("public", ReplicaIdentity.DEFAULT)
    assert [(column.name, column.key) for column in note.columns] == [("id", True), ("body", False), ("feels", False)]
    assert (every.identity, [column.key for column in every.columns]) == (ReplicaIdentity.FULL, [True, True])
    assert {(each.schema, each.name) for each in messages if isinstance(each, TypeInfo)} == {("public", "mood")}
    assert [message for message in messages if isinstance(message, Insert | Update | Delete | Truncate)] == [
        Insert(note, ("1", body, "happy")),
        Update(note, None, False, ("1", UNCHANGED, None)),
        Update(note, ("1", None, None), True, ("2", UNCHANGED, None)),
        Delete(note, ("2", None, None), True),
        Insert(every, ("1", "a")),
        Update(every, ("1", "a"), False, ("1", "b")),
        Truncate((note, every)),
    ]
    told = [message for message in messages if isinstance(message, LogicalMessage)]
    assert [(each.transactional, each.prefix, each.content) for each in told] == [
        (False, "hw", b"ping"),
        (True, "hw", b"look"),
    ]
    begins = [message for message in messages if isinstance(message, Begin)]
    commits = [message for message in messages if isinstance(message, Commit)]
    assert [each.final_lsn for each in begins] == [each.commit_lsn for each in commits]
    assert [each.committed_us for each in begins] == [each.committed_us for each in commits]
    assert all(each.end_lsn > each.commit_lsn for each in commits)


def test_commit_has_time_and_xid(session: Connection) -> None:
    session.execute("create table t (a int)")
    follow(session)
    with session.transaction():
        session.execute("insert into t values (1)")
        rows = session.execute("select pg_current_xact_id()::xid::text::int8, clock_timestamp()").fetchall()
    ((xid, before),) = rows
    (begin, *_, _commit) = stream(session)
    assert isinstance(begin, Begin)
    assert begin.xid == xid
    committed = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=begin.committed_us)
    assert datetime.timedelta(0) <= committed - before < datetime.timedelta(minutes=1)


def test_change_of_other_origin_names_it(session: Connection) -> None:
    session.execute("create table t (a int)")
    follow(session)
    name = f"elsewhere_{session.info.dbname}"
    session.execute("select pg_replication_origin_create(%s)", [name])
    try:
        session.execute("select pg_replication_origin_session_setup(%s)", [name])
        with session.transaction():
            session.execute("select pg_replication_origin_xact_setup('0/ABC', now())")
            session.execute("insert into t values (1)")
        (origin,) = [message for message in stream(session) if isinstance(message, OriginMessage)]
        assert (origin.name, origin.lsn) == (name, 0xABC)
    finally:
        session.execute("select pg_replication_origin_session_reset()")
        session.execute("select pg_replication_origin_drop(%s)", [name])


def test_session_settings_are_pinned(session: Connection, source_db: SourceDb) -> None:
    for kind in ("false", "database"):
        conninfo = f"{source_db.dsn} replication={kind} client_encoding=UTF8 options='{settings_options()}'"
        link = pq.PGconn.connect(conninfo.encode())
        assert link.status == pq.ConnStatus.OK, link.get_error_message()
        try:
            shown = {name: show(link, name) for name in SESSION_SETTINGS}
            for statement in statements_for(link.server_version):
                assert link.exec_(statement.encode()).status == pq.ExecStatus.COMMAND_OK
        finally:
            link.finish()
        assert shown == {**SESSION_SETTINGS, "DateStyle": shown["DateStyle"]}
        assert shown["DateStyle"].startswith("ISO, ")


@pytest.fixture
def hasty_role(source_db: SourceDb) -> Iterator[str]:
    """A role that may replicate, and has every time-out that the server knows."""
    role = f"{source_db.name}_hasty"
    source_db.execute(f"create role {role} login replication")
    for (name,) in source_db.fetch(
        "select name from pg_settings where name ~ '^(statement|lock|idle|transaction).*timeout$'"
    ):
        if name != "idle_replication_slot_timeout":
            source_db.execute(f"alter role {role} set {name} = '300ms'")
    yield role
    source_db.execute(f"drop role {role}")


def test_role_timeouts_do_not_end_slot_creation(source_db: SourceDb, hasty_role: str) -> None:
    source_db.execute("create table t (id int primary key)")
    settings = source_db.settings(user=hasty_role)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(source_db.dsn) as writer:
        writer.execute("insert into t values (1)")
        making = pool.submit(SnapshotKeeper, settings, "hasty", temporary=True)
        waits = (
            "select from pg_stat_activity where application_name = 'headwater snapshot' and wait_event_type = 'Lock'"
        )
        wait_until(lambda: making.done() or bool(source_db.fetch(waits)), "the slot to wait for the transaction")
        source_db.execute("select pg_sleep(1)")
        writer.commit()
        with making.result() as keeper, psycopg.connect(source_db.dsn, autocommit=True) as reader:
            source_db.execute("select pg_sleep(1)")
            reader.execute("begin transaction isolation level repeatable read")
            reader.execute(sql.SQL("set transaction snapshot {}").format(keeper.snapshot))
            assert reader.execute("select id from t").fetchall() == [(1,)]


def test_money_is_locale_independent(german_postgres: EmbeddedPostgres) -> None:
    source = SourceDb(german_postgres, "postgres")
    source.execute("create table t (id int primary key, price money); create publication headwater for table t")
    source.execute("select pg_create_logical_replication_slot('price', 'pgoutput')")
    source.execute("insert into t values (1, '1.234,50'); set synchronous_commit = on; update t set id = 2")
    assert source.fetch("select price::text from t") == [("1.234,50 €",)]
    with connect(source.settings()) as conn:
        copied = conn.execute("select price::text from t").fetchone()
    link = replication_connection(source.settings(), "price")
    try:
        options = "(proto_version '1', publication_names 'headwater')"
        link.exec_(f"START_REPLICATION SLOT price LOGICAL 0/0 {options}".encode())
        payloads: list[bytes] = []
        while not any(isinstance(message, Update) for message in Decoder().decode(payloads)):
            _, data = link.get_copy_data(0)
            payloads += [bytes(data[25:])] if data[0] == ord("w") else []
    finally:
        link.finish()
        source.connection.close()
    streamed = [m.new[1] for m in Decoder().decode(payloads) if isinstance(m, Insert | Update)]
    assert (copied, streamed) == (("$1,234.50",), ["$1,234.50"] * 2)


def show(link: PGconn, name: str) -> str:
    value = link.exec_(f"show {name}".encode()).get_value(0, 0)
    assert value is not None
    return value.decode()


VALUES = {
    "1": r'''"a"=>"1", "b \"c"=>NULL, "d\\\\e"=>"tab\there"''',
    "2": "",
    "3": None,
    "4": '"k"=>"' + "x" * 200_000 + '"',
}


@pytest.mark.parametrize("identity", ["default", "full"])
def test_hstore_arrives_as_text(deploy: Callable[..., Deployment], source_db: SourceDb, identity: str) -> None:
    skip_without("hstore", source_db.connection)
    source_db.execute("create extension hstore; create table notes (id text primary key, h hstore, hs hstore[], n int)")
    source_db.execute("alter table notes alter h set storage external")
    source_db.execute(f"alter table notes replica identity {identity}")

    def truth() -> dict[tuple[str, str], dict[str, object]]:
        rows = source_db.fetch("select id, h::text, n from notes")
        return {("notes", key): {"id": key, "h": h, "hs": None, "n": n} for key, h, n in rows}

    for key in ("1", "4"):
        source_db.execute("insert into notes values (%s, %s::hstore)", key, VALUES[key])
    deployment = deploy(NOTES).start()
    assert deployment.rows("a") == truth()
    for key in ("2", "3"):
        source_db.execute("insert into notes values (%s, %s::hstore)", key, VALUES[key])
    source_db.execute("update notes set n = 1")  # the long value is not in the stream
    source_db.execute("update notes set h = h || 'new=>1' where id < '3'; delete from notes where id = '3'")
    assert deployment.rows("a") == truth()
    source_db.execute("create schema apart; alter extension hstore set schema apart; set search_path = public, apart")
    source_db.execute("update notes set h = apart.delete(h, 'a'), hs = array['x=>1'::apart.hstore] where id = '1'")
    shown = deployment.rows("a")["notes", "1"]
    assert shown["h"] == source_db.fetch("select h::text from notes where id = '1'")[0][0]
    assert shown["hs"] == r'["\"x\"=>\"1\""]'
    source_db.execute("alter table notes alter h type text using h::text, drop hs")
    wait_until(lambda: "hs" not in deployment.rows("a")["notes", "1"], "the columns to be others")
    assert deployment.rows("a") == {key: {k: v for k, v in row.items() if k != "hs"} for key, row in truth().items()}
