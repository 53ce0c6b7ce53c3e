"""The tables that the command makes of rows that came, for who has no schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from headwater_client.cli import found_schema, read_schema


def test_names_that_no_table_can_have_are_left_out() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table ps_oplog (row_type text, data text)")
        rows = [
            ("todos", '{"id": "1", "title": "tea", "Title": "Tea", "a b": 1, "ID": 1, "n": 1, "m": null}'),
            ("todos", '{"id": "2", "n": "one"}'),
            ("Todos", '{"title": "tea"}'),
            ("price list", '{"title": "tea"}'),
        ]
        connection.executemany("insert into ps_oplog values (?, ?)", rows)
        schema, left_out = found_schema(connection, ["todos", "Todos", "price list"], [])
    assert {name: table.columns for name, table in schema.views.items()} == {"Todos": {"title": "text"}}
    assert left_out == ["price list", "todos"]

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table ps_oplog (row_type text, data text)")
        connection.executemany("insert into ps_oplog values (?, ?)", rows[:2])
        schema, left_out = found_schema(connection, ["todos", "Todos", "price list"], [])
    assert {name: table.columns for name, table in schema.views.items()} == {"todos": {"Title": "text", "n": "text"}}
    assert left_out == ["todos.ID", "todos.a b", "todos.title"]

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table ps_oplog (row_type text, data text)")
        connection.executemany("insert into ps_oplog values (?, ?)", rows)
        schema, left_out = found_schema(connection, ["Todos"], ["todos"])
    assert (schema.views, left_out) == ({}, ["Todos"])


def test_names_of_a_schema_file_that_no_table_can_have_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"todos": {"title": "text", "Total Price": "real", "ID": "text"}, "price list": {"n": "integer"}}')
    schema, left_out = read_schema(file)
    assert {name: table.columns for name, table in schema.views.items()} == {"todos": {"title": "text"}}
    assert left_out == ["price list", "todos.Total Price", "todos.ID"]
