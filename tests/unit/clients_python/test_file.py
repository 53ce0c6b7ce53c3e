"""What the app does to a device's file: tables, the upload queue, schemas that change."""

from __future__ import annotations

import gc
import json
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils.db import NotFoundError

from headwater_client import CrudEntry, Database, Schema, Table, TrackPrevious
from headwater_client.database.connector import as_json
from headwater_client.errors import FileError, SchemaError
from tests.support.waiting import wait_until

TODOS = {
    "todos": Table({"title": "text", "done": "integer", "share": "real"}, indexes={"by_title": ["title", "-done"]})
}

Open = Callable[..., Database]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the same file again and again."""
    databases: list[Database] = []

    def start(tables: Any = TODOS, **options: Any) -> Database:
        schema = None if tables is None else Schema.of(tables)
        databases.append(Database(tmp_path / "device.db", schema, **options))
        return databases[-1]

    yield start
    for database in databases:
        database.close()


def queue(database: Database) -> list[list[tuple[str, str, object]]]:
    return [[(each.op, each.id, each.data) for each in tx.crud] for tx in database.crud_transactions()]


def test_table_methods(opened: Open) -> None:
    todos = opened()["todos"]
    todos.insert({"id": "1", "title": "milk", "done": 0})
    todos.insert_all([{"id": "2", "title": "bread", "share": 0.5}, {"id": "3", "title": "tea"}])
    todos.update("1", {"done": 1}).upsert({"id": "3", "done": 1}).upsert({"id": "4", "title": "salt"})
    todos.delete("2")
    assert list(todos.rows_where("done = 1", order_by="id")) == [
        {"id": "1", "title": "milk", "done": 1, "share": None},
        {"id": "3", "title": "tea", "done": 1, "share": None},
    ]
    assert todos.get("4")["title"] == "salt"
    assert todos.count == 3
    assert todos.pks == ["id"]
    with pytest.raises(NotFoundError):
        todos.update("gone", {"done": 1})


def test_row_without_an_id(opened: Open) -> None:
    todos = opened()["todos"]
    todos.insert({"title": "milk"})
    assert todos.get(todos.last_pk)["title"] == "milk"


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_column("x"),
        lambda t: t.drop(),
        lambda t: t.insert({"x": 1}, "x"),
        lambda t: t.insert({}, alter=True),
    ],
)
def test_table_is_not_reshaped(opened: Open, change: Callable[[Any], object]) -> None:
    with pytest.raises(SchemaError):
        change(opened()["todos"])


def test_crud_transactions(opened: Open) -> None:
    database = opened()
    todos = database["todos"]
    with database.atomic():
        todos.insert({"id": "1", "title": "a"})
        todos.insert({"id": "2", "title": "b"})
    todos.update("1", {"title": "c"})
    database.execute("delete from todos where id = ?", ["2"])
    with pytest.raises(sqlite3.IntegrityError):
        todos.insert_all([{"id": "9", "title": "undone"}, {"id": "1"}])
    assert queue(database) == [
        [("PUT", "1", {"title": "a"}), ("PUT", "2", {"title": "b"})],
        [("PATCH", "1", {"title": "c"})],
        [("DELETE", "2", None)],
    ]


def test_complete(opened: Open) -> None:
    database = opened()
    for number in range(4):
        database["todos"].insert({"id": str(number)})
    transactions = list(database.crud_transactions())
    transactions[1].complete()
    assert [entries[0][1] for entries in queue(database)] == ["2", "3"]
    batch = database.get_crud_batch(100)
    assert batch is not None
    batch.complete()
    assert database.get_next_crud_transaction() is None
    assert database.uploads_waiting == 0


def test_writes_of_several_threads(opened: Open) -> None:
    database = opened()

    def write(name: str) -> None:
        for number in range(20):
            with database.atomic():
                database["todos"].insert({"id": f"{name}{number}"})
                database["todos"].update(f"{name}{number}", {"done": 1})

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database["todos"].count == 60
    assert [len(entries) for entries in queue(database)] == [2] * 60


def entries(database: Database) -> list[CrudEntry]:
    return [entry for transaction in database.crud_transactions() for entry in transaction.crud]


def test_track_previous_and_metadata(opened: Open) -> None:
    tables = {
        "plain": Table({"a": "text", "b": "integer"}),
        "all": Table({"a": "text", "b": "integer"}, track_previous=True),
        "some": Table(
            {"a": "text", "b": "integer"},
            track_previous=TrackPrevious(["a"], only_when_changed=True), track_metadata=True, ignore_empty_updates=True,
        ),
    }  # fmt: skip
    database = opened(tables)
    for name in tables:
        database[name].insert({"id": "1", "a": "x", "b": 1})
        database[name].update("1", {"b": 2})
        database[name].update("1", {"b": 2})
    database["some"].update("1", {"a": "y", "_metadata": "why"})
    database.execute("update some set _deleted = 1, _metadata = 'bye' where id = '1'")
    database["all"].delete("1")
    told = [(each.table, each.op, each.data, each.previous, each.metadata) for each in entries(database)]
    assert told == [
        ("plain", "PUT", {"a": "x", "b": 1}, None, None),
        ("plain", "PATCH", {"b": 2}, None, None),
        ("plain", "PATCH", {}, None, None),
        ("all", "PUT", {"a": "x", "b": 1}, None, None),
        ("all", "PATCH", {"b": 2}, {"a": "x", "b": 1}, None),
        ("all", "PATCH", {}, {"a": "x", "b": 2}, None),
        ("some", "PUT", {"a": "x", "b": 1}, None, None),
        ("some", "PATCH", {"b": 2}, {}, None),
        ("some", "PATCH", {"a": "y"}, {"a": "x"}, "why"),
        ("some", "DELETE", None, {"a": "y"}, "bye"),
        ("all", "DELETE", None, {"a": "x", "b": 2}, None),
    ]
    assert database["some"].count == 0


def test_local_only_and_insert_only(opened: Open) -> None:
    database = opened(
        {"drafts": Table({"a": "text"}, local_only=True), "events": Table({"a": "text"}, insert_only=True)}
    )
    database["drafts"].insert({"id": "1", "a": "x"})
    database["drafts"].update("1", {"a": "y"})
    database["events"].insert({"id": "2", "a": "z"})
    assert queue(database) == [[("PUT", "2", {"a": "z"})]]
    assert database["drafts"].get("1")["a"] == "y"
    assert database["events"].count == 0


def test_table_of_many_columns(opened: Open) -> None:
    columns: dict[str, Any] = {f"c{number}": "text" for number in range(500)}
    database = opened({"wide": Table(columns)})
    database["wide"].insert({"id": "1", "c0": "a", "c499": "b"})
    database["wide"].update("1", {"c250": "c", "c499": None})
    assert queue(database) == [
        [("PUT", "1", {"c0": "a", "c499": "b"})], [("PATCH", "1", {"c250": "c", "c499": None})],
    ]  # fmt: skip
    assert database["wide"].get("1")["c250"] == "c"


@pytest.mark.parametrize(
    "value",
    [
        "", "é\n'\"\\", "{}", "[1,2]", "null", "\U0001f600", 0, -1, 2**63 - 1, 1.5, 1e300, 0.1 + 0.2, 1 / 3, 5e-324,
        -1e-7, None,
    ],
)  # fmt: skip
def test_values_round_trip(opened: Open, value: object) -> None:
    column = {str: "title", int: "done", float: "share"}.get(type(value), "title")
    database = opened()
    database["todos"].insert({"id": "1", column: value})
    assert database["todos"].get("1")[column] == value
    (entry,) = entries(database)
    assert entry.data == ({} if value is None else {column: value})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_without_a_json_form(opened: Open, value: float) -> None:
    database = opened({"todos": Table({"share": "real"}, track_previous=True)})
    database["todos"].insert({"id": "1", "share": value})
    database["todos"].update("1", {"share": 0.5})
    told = json.loads(json.dumps([as_json(entry) for entry in entries(database)], allow_nan=False))
    assert [(each["data"], each.get("old")) for each in told] == [
        ({} if math.isnan(value) else {"share": None}, None), ({"share": 0.5}, {"share": None}),
    ]  # fmt: skip


def test_indexes(opened: Open) -> None:
    plan = opened().rows("EXPLAIN QUERY PLAN SELECT * FROM todos WHERE title = 'x' ORDER BY done DESC")
    assert ["ps_data__todos__by_title" in row["detail"] for row in plan] == [True]


def test_schema_changes(opened: Open) -> None:
    database = opened()
    database["todos"].insert({"id": "1", "title": "milk"})
    for tables, shown in (
        ({"todos": Table({"title": "text", "color": "text"})}, {"id": "1", "title": "milk", "color": None}),
        ({"others": {"x": "text"}}, None),
        ({"todos": Table({"title": "text"}, view_name="tasks")}, {"id": "1", "title": "milk"}),
    ):
        database.close()
        database = opened(tables)
        if shown is not None:
            assert list(database["tasks" if len(shown) == 2 else "todos"].rows) == [shown]


def test_open_without_schema(opened: Open) -> None:
    opened()["todos"].insert({"id": "1", "title": "milk"})
    database = opened(None)
    database["todos"].update("1", {"title": "tea"})
    assert database["todos"].get("1")["title"] == "tea"


def test_foreign_files(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("nothing that SQLite knows, and longer than its header of a hundred bytes " * 3)
    with pytest.raises(FileError, match="cannot be opened"):
        Database(text)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("create table ps_migration(id integer primary key, down_migrations text)")
        connection.execute("insert into ps_migration values (99, null)")
    connection.close()
    with pytest.raises(FileError, match="layout 99"):
        Database(newer)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"a b": {}}, "a name is not empty"),
        ({"t": {"id": "text"}}, "column id already"),
        ({"t": {"a": "blob"}}, "take one of"),
        ({"t": {"a": "text", "A": "text"}}, "no capitals"),
        ({"t": Table({"a": "text"}, indexes={"i": ["b"]})}, "does not have"),
        ({"t": Table({"a": "text"}, local_only=True, track_previous=True)}, "nothing to track"),
        ({"t": {}, "u": Table({}, view_name="T")}, "two tables"),
        ({"t": {f"c{number}": "text" for number in range(2000)}}, "2000 columns"),
    ],
)
def test_invalid_schema(tables: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        Schema.of(tables)


def test_encryption(tmp_path: Path) -> None:
    pytest.importorskip("sqlcipher3")
    path = tmp_path / "secret.db"
    with Database(path, TODOS, key="it's a secret") as database:
        database["todos"].insert({"id": "1", "title": "milk"})
        assert queue(database) == [[("PUT", "1", {"title": "milk"})]]
    assert b"milk" not in path.read_bytes()
    with Database(path, TODOS, key="it's a secret") as database:
        assert database["todos"].get("1")["title"] == "milk"
    with pytest.raises(FileError):
        Database(path, TODOS, key="another")
    with pytest.raises(FileError):
        Database(path, TODOS)


def test_disconnect_and_clear(opened: Open) -> None:
    database = opened({**TODOS, "drafts": Table({"a": "text"}, local_only=True)})
    known = database.client_id
    database["todos"].insert({"id": "1"})
    database["drafts"].insert({"id": "1"})
    database.disconnect_and_clear(clear_local=False)
    assert (database["todos"].count, database["drafts"].count, database.uploads_waiting) == (0, 1, 0)
    database.disconnect_and_clear()
    assert database["drafts"].count == 0
    assert database.client_id == known
    database["todos"].insert({"id": "2"})
    assert [entry.op_id for entry in entries(database)] == [2], "numbers of writes are never used twice"


def test_connections_of_ended_threads(opened: Open) -> None:
    database = opened()
    for _ in range(5):
        thread = threading.Thread(target=lambda: database["todos"].insert({"title": "x"}))
        thread.start()
        thread.join()
    gc.collect()
    assert database["todos"].count == 5
    assert len(database._connections._open) == 1


def test_watch_ends_with_close(opened: Open) -> None:
    database, results = opened(), []
    first = threading.Event()

    def follow() -> None:
        for rows in database.watch("select count(*) as n from todos"):
            results.append(rows[0]["n"])
            first.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(60)
    database["todos"].insert({"id": "1"})
    wait_until(lambda: results == [0, 1], "the second result")
    database.close()
    thread.join(60)
    assert not thread.is_alive()


def test_watch_of_another_process(opened: Open) -> None:
    mine, other = opened(), opened()
    results = mine.watch("select id from todos")
    assert next(results) == []
    other["todos"].insert({"id": "1"})
    assert next(results) == [{"id": "1"}]
