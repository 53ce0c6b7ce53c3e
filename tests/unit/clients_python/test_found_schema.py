"""The tables that the command makes of rows that came, for who has no schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater_client.cli import found_schema, read_schema

ROWS = [
    ("todos", '{"id": "1", "title": "tea", "Title": "Tea", "a b": 1, "ID": 1, "n": 1, "m": null}'),
    ("todos", '{"id": "2", "n": "one"}'),
    ("Todos", '{"title": "tea"}'),
    ("price list", '{"title": "tea"}'),
]
ALL = ["todos", "Todos", "price list"]


@pytest.mark.parametrize(
    ("rows", "tables", "known", "expected", "left_out"),
    [
        (ROWS, ALL, [], {"Todos": {"title": "text"}}, ["price list", "todos"]),
        (ROWS[:2], ALL, [], {"todos": {"Title": "text", "n": "text"}}, ["todos.ID", "todos.a b", "todos.title"]),
        (ROWS, ["Todos"], ["todos"], {}, ["Todos"]),
    ],
)
def test_impossible_names_of_rows_are_left_out(
    rows: list[tuple[str, str]], tables: list[str], known: list[str], expected: object, left_out: list[str]
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table ps_oplog (row_type text, data text)")
        connection.executemany("insert into ps_oplog values (?, ?)", rows)
        schema, without = found_schema(connection, tables, known)
    assert {name: table.columns for name, table in schema.views.items()} == expected
    assert without == left_out


def test_impossible_names_of_a_schema_file_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"todos": {"title": "text", "Total Price": "real", "ID": "text"}, "price list": {"n": "integer"}}')
    schema, left_out = read_schema(file)
    assert {name: table.columns for name, table in schema.views.items()} == {"todos": {"title": "text"}}
    assert left_out == ["price list", "todos.Total Price", "todos.ID"]
