"""The source's schema as rules see it, read from a real Postgres."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.source.catalog.schema import read_schema
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode
from headwater_rules.schema import SourceSchema, ValueKind
from tests.integration.type_cases import CASES, CUSTOM_TYPES
from tests.support.command import Run
from tests.support.fix_postgres import SourceDb, skip_without

_PYTHON = {
    ValueKind.INTEGER: int,
    ValueKind.REAL: float,
    ValueKind.TEXT: str,
    ValueKind.JSON: str,
    ValueKind.BLOB: bytes,
}


def test_type_maps_to_value_type(source_db: SourceDb) -> None:
    skip_without("xml", source_db.connection)
    source_db.execute(CUSTOM_TYPES)
    columns = ", ".join(f"c{number} {each.type}" for number, each in enumerate(CASES))
    source_db.execute(f"create table samples ({columns})")
    (table,) = read_schema(source_db.settings()).tables
    for column, each in zip(table.columns, CASES, strict=True):
        for _, value in each.values:
            if value is None or (column.kind is ValueKind.REAL and value in {"NaN", "-Infinity"}):
                continue
            assert type(value) is _PYTHON[column.kind], each.type
            if column.kind is ValueKind.JSON and value != "empty":
                parsed = json.loads(str(value))
                if column.elements in {ValueKind.INTEGER, ValueKind.REAL} and not str(value).startswith("[["):
                    assert all(isinstance(item, int | float | None | str) for item in parsed)
    assert SourceSchema.from_json(SourceSchema((table,)).to_json()).tables == (table,)


def test_tables_of_every_schema(source_db: SourceDb) -> None:
    source_db.execute(
        """create schema app; create type mood as enum ('glad'); create domain age as int;
        create table app."Plans" (id int primary key, "At" timestamptz(3), gone int, moods mood[], age age);
        alter table app."Plans" drop column gone;
        create table parts (id int, kind text) partition by list (kind);
        create table parts_a partition of parts for values in ('a');
        create table empty ();
        create view seen as select 1 as x; create unlogged table quick (id int); create temp table own (id int)"""
    )
    schema = read_schema(source_db.settings())
    assert [(table.tag, table.schema, table.name) for table in schema.tables] == [
        ("default", "app", "Plans"),
        ("default", "public", "empty"),
        ("default", "public", "parts"),
        ("default", "public", "parts_a"),
    ]
    assert [(each.schema, each.name, each.form) for each in schema.not_streamed] == [
        ("public", "quick", "an unlogged table"),
        ("public", "seen", "a view"),
    ]
    assert SourceSchema.from_json(schema.to_json()).not_streamed == schema.not_streamed
    config = "config: {edition: 3}\nstreams: {a: {query: 'SELECT * FROM seen'}, b: {query: 'SELECT * FROM parts'}}\n"
    told = [each.message for each in compile_config(config, schema=schema).warnings if each.code is RuleCode.NO_TABLE]
    assert told == ["`public.seen` is a view, which Postgres does not stream"]
    plans = schema.tables[0]
    assert [(column.name, column.type) for column in plans.columns] == [
        ("id", "integer"),
        ("At", "timestamp(3) with time zone"),
        ("moods", "mood[]"),
        ("age", "age"),
    ]
    moods, age = plans.columns[2:]
    assert (moods.kind, moods.elements, moods.by_option) == (ValueKind.JSON, ValueKind.TEXT, True)
    assert (age.kind, age.value_kind(custom_types=False)) == (ValueKind.INTEGER, ValueKind.TEXT)


@pytest.fixture
def config(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table lists (id uuid primary key, owner_id int, name text)")
    (tmp_path / "headwater.yaml").write_text(
        f"replication: {{connections: [{{uri: '{source_db.uri}', sslmode: disable}}]}}\n"
        "storage: {type: sqlite, path: data}\n"
    )
    (tmp_path / "sync.yaml").write_text(
        "config: {edition: 3}\nstreams:\n  lists: {query: SELECT nme FROM lists WHERE owner_id = auth.user_id()}\n"
    )


@pytest.mark.usefixtures("config")
def test_schema_file_equals_source(headwater_here: Run, tmp_path: Path) -> None:
    live = headwater_here("rules", "check", "sync.yaml", "--schema", "--json")
    assert live.code == 0, live
    assert [each["code"] for each in json.loads(live.out)["warnings"]] == ["HW_R302", "HW_R303", "HW_R304"]
    written = headwater_here("source", "schema", "-o", "schema.json")
    assert (written.code, written.out) == (0, "schema.json: 1 table\n")
    assert headwater_here("source", "schema").out == (tmp_path / "schema.json").read_text()
    (tmp_path / "headwater.yaml").unlink()
    stored = headwater_here("rules", "check", "sync.yaml", "--schema-file", "schema.json", "--json")
    of_file, of_source = json.loads(stored.out), json.loads(live.out)
    assert {**of_file, "note": of_source["note"]} == of_source
    assert of_file["note"] == "compared with the tables in schema.json"


def test_unpublished_columns_are_named(source_db: SourceDb) -> None:
    source_db.needs(15, "column lists")
    source_db.execute(
        """create table notes (id int primary key, private bool, twice int generated always as (id * 2) stored);
        create table other (id int primary key); create publication headwater for table notes (id)"""
    )
    notes, other = read_schema(source_db.settings()).tables
    assert (notes.unsent, other.unsent) == (("private",), ())
    assert notes.sent == {"id", "twice"}


@pytest.mark.usefixtures("config")
def test_rules_are_checked_unless_source_is_away(headwater_here: Run, source_db: SourceDb, tmp_path: Path) -> None:
    typo = "config: {edition: 3}\nstreams:\n  lists: {query: SELECT id FROM lists WHERE delted_at IS NULL}\n"
    (tmp_path / "sync.yaml").write_text(typo)
    compared = f"note: compared with the tables of source default (127.0.0.1:{source_db.server.port}/{source_db.name})"
    found = headwater_here("rules", "check", "sync.yaml")
    assert found.code == 1
    assert "error [HW_R302]: no column `delted_at` in `lists`" in found.err
    assert compared in found.err
    assert "--allow-missing" in found.err
    allowed = headwater_here("rules", "check", "sync.yaml", "--allow-missing")
    assert (allowed.code, "warning [HW_R302]" in allowed.err) == (0, True)
    diff = headwater_here("rules", "diff", "sync.yaml", "--against", "sync.yaml")
    assert (diff.code, "error [HW_R302]" in diff.err) == (1, True)
    diff = headwater_here("rules", "diff", "sync.yaml", "--against", "sync.yaml", "--allow-missing")
    assert (diff.code, "no column `delted_at`" in diff.out, compared in diff.err) == (0, True, True)
    unasked = headwater_here("rules", "check", "sync.yaml", "--no-schema")
    assert (unasked.code, "note: its tables are not compared with the source: --no-schema" in unasked.err) == (0, True)

    config = (tmp_path / "headwater.yaml").read_text().replace(f":{source_db.server.port}/", ":1024/")
    (tmp_path / "headwater.yaml").write_text(config)
    away = headwater_here("rules", "check", "sync.yaml")
    assert away.code == 0
    assert "note: its tables are not compared with the source: [HW_2001]" in away.err
    (tmp_path / "headwater.yaml").write_text("storage: [")
    broken = headwater_here("rules", "check", "sync.yaml")
    assert (broken.code, "not compared with the source: the service config can't be used" in broken.err) == (0, True)


@pytest.mark.usefixtures("config")
def test_unreachable_source_is_named(headwater_here: Run, tmp_path: Path) -> None:
    config = "replication: {connections: [{uri: 'postgresql://postgres@127.0.0.1:1024/x', sslmode: disable}]}\n"
    (tmp_path / "headwater.yaml").write_text(config + "storage: {type: sqlite, path: data}\n")
    outcome = headwater_here("rules", "check", "sync.yaml", "--schema")
    assert outcome.code != 0
    assert "cannot be reached" in outcome.err
    assert "127.0.0.1:1024" in outcome.err
