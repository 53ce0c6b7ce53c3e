"""The op log as Spark asks for it: options, offsets and micro-batches, without a Spark of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from headwater.spark import (
    ForeignOffsetError,
    OplogOptionError,
    OplogReader,
    OplogSource,
    OplogStreamReader,
    SnapshotReader,
    read_options,
)
from headwater.storage.address import PostgresAddress, SqliteAddress
from tests.support.written_store import WrittenStore

A, B = 'todos["a"]', 'notes["b"]'


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenStore]:
    store = WrittenStore(SqliteAddress(str(tmp_path / "store")))
    yield store
    store.close()


def source_of(written: WrittenStore, **options: str) -> OplogSource:
    assert isinstance(written.address, SqliteAddress)
    return OplogSource({"path": written.address.directory, **options})


def stream_of(written: WrittenStore, **options: str) -> OplogStreamReader:
    source = source_of(written, **options)
    reader = source.streamReader(StructType())
    assert isinstance(reader, OplogStreamReader)
    return reader


Reader = OplogReader | SnapshotReader | OplogStreamReader


def rows_of(reader: Reader, parts: list[InputPartition]) -> list[dict[str, Any]]:
    batches: list[pa.RecordBatch] = [batch for part in parts for batch in reader.read(part)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: int(row["op_id"]))


def test_options() -> None:
    options = read_options({"PATH": "file:/stores/app", "bucket": json.dumps([A, B]), "table": "todos"})
    assert options.address == SqliteAddress("/stores/app")
    assert (options.where.buckets, options.where.definitions) == ((A, B), ())
    assert (options.tables, options.snapshot, options.limit) == (frozenset({"todos"}), False, None)
    assert (options.start, options.end) == ("earliest", "latest")
    options = read_options(
        {"path": "/stores/app", "snapshot": "TRUE", "maxOpsPerBatch": "7", "startingOffset": "3", "endingOffset": "9"}
    )
    assert (options.snapshot, options.limit, options.start, options.end) == (True, 7, 3, 9)


def test_password() -> None:
    uri = "postgresql://reader@db.example.com/app"
    address = read_options({"uri": uri, "password": "hunter2"}).address
    assert isinstance(address, PostgresAddress)
    assert "password=hunter2" in address.conninfo
    assert (address.schema, address.place) == ("headwater", "db.example.com/app")
    assert "hunter2" not in repr(address)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of path and uri"),
        ({"path": "/x", "uri": "postgresql://db"}, "one of path and uri"),
        ({"uri": "host=db password='hunter2"}, "can't be read"),
        ({"uri": "postgresql://app:hunter2@db/app"}, "must not contain a password"),
        ({"path": "/x", "folder": "/y"}, "no such option (folder)"),
        ({"path": "/x", "bucket": "[1]"}, "a JSON list of names"),
        ({"path": "/x", "bucket": "[]"}, "a JSON list of names"),
        ({"path": "/x", "table": "["}, "a JSON list of names"),
        ({"path": "/x", "snapshot": "maybe"}, "true or false"),
        ({"path": "/x", "startingOffset": "-1"}, "from 0 on or earliest or latest"),
        ({"path": "/x", "startingOffset": "yesterday"}, "must be a whole number"),
        ({"path": "/x", "endingOffset": "earliest"}, "from 0 on or latest"),
        ({"path": "/x", "maxOpsPerBatch": "0"}, "from 1 on"),
    ],
)
def test_invalid_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(OplogOptionError) as failure:
        read_options(options)
    assert said in str(failure.value)
    assert "hunter2" not in str(failure.value)


def test_batch(written: WrittenStore) -> None:
    first = written.publish({"1": (A, "x"), "2": (B, "y")})
    second = written.write({"1": (A, "z")})
    source = source_of(written, startingOffset=str(first.op_id), table="todos")
    source.schema()  # as Spark does, when the DataFrame is made
    reader = source.reader(StructType())
    assert isinstance(reader, OplogReader)
    written.write({"1": (A, "after the frame was made")})
    (row,) = rows_of(reader, list(reader.partitions()))
    assert (row["op"], row["op_id"], row["bucket"], row["id"]) == ("PUT", second.op_id, A, "1")
    assert json.loads(row["data"]) == {"text": "z"}
    source = source_of(written, endingOffset=str(2**60))
    with pytest.raises(OplogOptionError, match="the store has ops up to"):
        source.reader(StructType())


def test_snapshot(written: WrittenStore) -> None:
    written.publish({"1": (A, "x"), "2": (B, "y")})
    checkpoint = written.write({"1": None, "3": (A, "z")})
    source = source_of(written, snapshot="true")
    source.schema()  # as Spark does, when the DataFrame is made
    reader = source.reader(StructType())
    assert isinstance(reader, SnapshotReader)
    rows = rows_of(reader, list(reader.partitions()))
    assert [(row["id"], row["checkpoint"]) for row in rows] == [("2", checkpoint.op_id), ("3", checkpoint.op_id)]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"snapshot": "true"}, "read in batch"), ({"endingOffset": "9"}, "a stream has no end")],
)
def test_batch_options_of_a_stream(written: WrittenStore, options: dict[str, str], said: str) -> None:
    with pytest.raises(OplogOptionError, match=said):
        stream_of(written, **options)


def test_micro_batches(written: WrittenStore) -> None:
    written.publish({str(number): (A, "x") for number in range(5)})
    last = [written.write({str(number): (B, "y")}) for number in range(5)][-1]
    stream = stream_of(written, maxOpsPerBatch="4")
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    stream.prepareForTriggerAvailableNow()
    after = written.write({"9": (B, "after the trigger")})
    offset = stream.initialOffset()
    found: list[int] = []
    while (end := stream.latestOffset(offset, limit)) != offset:
        rows = rows_of(stream, list(stream.partitions(offset, end)))
        assert 0 < len(rows) <= 4 or not found, "the first reaches to the end of what bulk work wrote"
        found += [row["op_id"] for row in rows]
        offset = end
    assert len(found) == len(set(found))
    assert found[-1] == offset["op_id"] == last.op_id
    assert stream.reportLatestOffset()["op_id"] == after.op_id
    goes_on = stream_of(written)
    assert isinstance(goes_on.getDefaultReadLimit(), ReadAllAvailable)
    end = goes_on.latestOffset(offset, goes_on.getDefaultReadLimit())
    assert [row["id"] for row in rows_of(goes_on, list(goes_on.partitions(offset, end)))] == ["9"]


def test_stream_from_latest(written: WrittenStore) -> None:
    checkpoint = written.publish({"1": (A, "x")})
    assert stream_of(written, startingOffset="latest").initialOffset()["op_id"] == checkpoint.op_id


def test_foreign_partition(written: WrittenStore) -> None:
    written.publish({"1": (A, "x")})
    assert list(stream_of(written).read(InputPartition(None))) == []


def test_foreign_offset(written: WrittenStore) -> None:
    checkpoint = written.publish({"1": (A, "x")})
    stream = stream_of(written)
    offset = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    with pytest.raises(ForeignOffsetError, match="belongs to another store"):
        stream.latestOffset({**offset, "store": "other"}, limit)
    with pytest.raises(ForeignOffsetError, match=f"ends at op {checkpoint.op_id}: it was restored"):
        stream.latestOffset({**offset, "op_id": checkpoint.op_id + 1}, limit)
