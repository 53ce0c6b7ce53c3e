"""Tables of the app's own, subscriptions, schema changes under a sync, and when an apply may show."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater_client.errors import SchemaError
from headwater_client.protocol.lines import (
    BucketChecksum,
    CheckpointComplete,
    CheckpointLine,
    Data,
    Line,
    Op,
    StreamInfo,
)
from headwater_client.protocol.session import FinishOutcome, StreamSession
from headwater_client.schema import RawTable, Schema, Statement
from headwater_client.storage import buckets, layout, streams
from headwater_client.storage.connection import open_connection
from headwater_client.storage.layout import replace_schema
from headwater_client.storage.store import DeviceStore
from headwater_client.storage.streams import StreamKey
from headwater_client.sync.status import SyncStatus
from tests.unit.clients_python.hearing import hear_line

Sync = Callable[..., FinishOutcome | None]
Row = tuple[str, str, dict[str, object] | None]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_connection(tmp_path / "device.db")
    layout.prepare(connection)
    yield connection
    connection.close()


def sync(store: DeviceStore, *rows: Row, start: int = 0, names: tuple[StreamInfo, ...] = ()) -> FinishOutcome | None:
    """A checkpoint with these rows of one bucket, each (type, id, data or None for a removal), after `start` others."""
    ops = [
        Op(
            str(number), "REMOVE" if data is None else "PUT", zlib.crc32(str(number).encode()), kind, row_id, "s",
            None if data is None else json.dumps(data),
        )
        for number, (kind, row_id, data) in enumerate(rows, 1)
    ]  # fmt: skip
    total = sum(op.checksum for op in ops) % 2**32
    checkpoint = CheckpointLine(str(len(ops)), (BucketChecksum("b", total, len(ops)),), None, names)
    return play(store, checkpoint, Data("b", ops[start:]), CheckpointComplete())


def play(store: DeviceStore, *lines: Line) -> FinishOutcome | None:
    """What came of these lines of a stream."""
    session, outcome = StreamSession(), None
    for line in lines:
        outcome = hear_line(session, store, line, 5.0) or outcome
    return outcome


def test_raw_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE kept(id TEXT PRIMARY KEY, title TEXT NOT NULL, tags TEXT)")
    connection.execute("CREATE TABLE mine(key TEXT PRIMARY KEY, n INTEGER, rest TEXT)")
    put = Statement("INSERT OR REPLACE INTO mine(key, n, rest) VALUES (?, ?, ?)", ["Id", {"Column": "n"}, "Rest"])
    delete = Statement("DELETE FROM mine WHERE key = ?", ["Id"])
    store = DeviceStore(connection, {"todos": RawTable(table_name="kept"), "other": RawTable(put, delete)})
    first: list[Row] = [("todos", "1", {"title": "a", "tags": ["x"]}), ("other", "2", {"id": "2", "n": 5, "m": 6})]
    assert sync(store, *first) is FinishOutcome.APPLIED
    assert connection.execute("SELECT * FROM kept").fetchall() == [("1", "a", '["x"]')]
    assert connection.execute("SELECT * FROM mine").fetchall() == [("2", 5, '{"m": 6}')]
    later: list[Row] = [("todos", "1", {"title": "b"}), ("other", "2", None), ("todos", "3", {"title": "c"})]
    assert sync(store, *first, *later, start=2) is FinishOutcome.APPLIED
    assert connection.execute("SELECT id, title FROM kept ORDER BY id").fetchall() == [("1", "b"), ("3", "c")]
    assert connection.execute("SELECT * FROM mine").fetchall() == []


def test_missing_raw_table(connection: sqlite3.Connection) -> None:
    with pytest.raises(SchemaError, match="raw table todos"):
        sync(DeviceStore(connection, {"todos": RawTable()}), ("todos", "1", {}))
    assert not connection.in_transaction


def test_rows_without_a_table(connection: sqlite3.Connection) -> None:
    store = DeviceStore(connection, {})
    sync(store, ("todos", "1", {"title": "a"}), ("todos", "2", {"title": "b"}))
    replace_schema(connection, Schema.of({"todos": {"title": "text"}}))
    assert connection.execute("SELECT id, title FROM todos ORDER BY id").fetchall() == [("1", "a"), ("2", "b")]
    assert connection.execute("SELECT count(*) FROM ps_untyped").fetchone() == (0,)


def test_priority_and_ttl_are_kept(connection: sqlite3.Connection) -> None:
    store, key = DeviceStore(connection, {}), StreamKey.of("lists", {"b": 1, "a": "é"})
    streams.subscribe(connection, key, 2, ttl=10, now=100.0)
    (asked,) = store.requested_streams([], now=105.0)
    assert (asked.stream, asked.parameters, asked.priority) == ("lists", {"a": "é", "b": 1}, 2)
    assert store.requested_streams([key], now=200.0) == [asked], "what is held does not expire"
    assert store.requested_streams([], now=209.0) == [asked]
    assert store.requested_streams([], now=211.0) == []


def test_default_streams(connection: sqlite3.Connection) -> None:
    store = DeviceStore(connection, {})
    streams.subscribe(connection, StreamKey.of("chosen", None), None, ttl=10, now=0.0)
    sync(store, names=(StreamInfo("mine", True), StreamInfo("chosen", False)))
    told = {each.key.name: (each.active, each.is_default, each.last_synced_at) for each in streams.stored(connection)}
    assert told == {"chosen": (True, False, 5.0), "mine": (True, True, 5.0)}
    assert [each.stream for each in store.requested_streams([], now=1.0)] == ["chosen"]
    sync(store)
    assert {each.key.name: each.active for each in streams.stored(connection)} == {"chosen": False}


def test_progress(connection: sqlite3.Connection) -> None:
    store = DeviceStore(connection, {})
    session = StreamSession()
    op = Op("1", "PUT", 7, "todos", "1", "s", "{}")
    for line in (CheckpointLine("3", (BucketChecksum("b", 7, 3, 1), BucketChecksum("c", 0, 4, 3))), Data("b", [op])):
        hear_line(session, store, line)
    assert session.target is not None
    status = SyncStatus(buckets=store.progress(session.target))
    whole, first = status.progress(), status.progress(priority=1)
    assert whole is not None
    assert first is not None
    assert ((whole.downloaded, whole.total), (first.downloaded, first.total)) == ((1, 7), (1, 3))


def test_row_that_comes_again(connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_LARGE", 0)
    monkeypatch.setattr(buckets, "_MANY_TIMES", 0)
    replace_schema(connection, Schema.of({"todos": {"title": "text"}}))
    checkpoint = CheckpointLine("7", (BucketChecksum("a", 1 + 5 + 7, 3), BucketChecksum("b", 6, 1)))
    others = [Op(str(number), "PUT", number, "todos", str(number), "s", "{}") for number in (2, 3, 4)]
    outcome = play(
        DeviceStore(connection, {}), checkpoint,
        Data("a", [Op("1", "PUT", 1, "todos", "k", "s", '{"title": "old"}')]), Data("b", others),
        Data("a", [Op("5", "REMOVE", 5, "todos", "k", "s")]), Data("b", [Op("6", "CLEAR", 6)]),
        Data("a", [Op("7", "PUT", 7, "todos", "k", "s", '{"title": "new"}')]), CheckpointComplete(),
    )  # fmt: skip
    assert outcome is FinishOutcome.APPLIED
    assert connection.execute("SELECT id, title FROM todos").fetchall() == [("k", "new")]
