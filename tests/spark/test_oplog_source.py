"""The op log as a DataFrame: what a query sees, that it sees each op once, and what it is told when it cannot go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from headwater.pipeline.spark.session import Spark
from headwater.spark import OplogSource
from headwater.storage.address import PostgresAddress, SqliteAddress
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until
from tests.support.written_store import WrittenStore, compact

pytestmark = pytest.mark.spark

# A stream has 10 s to start a process of Python, which no setting of Spark changes and a busy machine can exceed
SLOW_START = "Python worker failed to connect back"

A, B, C = 'todos["a"]', 'todos["b"]', 'notes["c"]'


@pytest.fixture
def session(spark: Spark) -> SparkSession:
    session = spark.session()
    session.dataSource.register(OplogSource)
    return session


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenStore]:
    store = WrittenStore(SqliteAddress(str(tmp_path / "store")))
    yield store
    store.close()


ONE_STORE_OFTEN = pytest.mark.parametrize(
    "stored", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)
"""For what Spark does alike, whichever store it reads."""


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WrittenStore]:
    """A store in each back end."""
    if request.param == "sqlite":
        store = WrittenStore(SqliteAddress(str(tmp_path / "store")))
    else:
        database: SourceDb = request.getfixturevalue("source_db")
        store = WrittenStore(PostgresAddress(database.dsn, "kept", "test"))
    yield store
    store.close()


def place_of(store: WrittenStore) -> dict[str, str]:
    """The options that name the store."""
    match store.address:
        case SqliteAddress(directory):
            return {"path": directory}
        case PostgresAddress(conninfo, schema):
            return {"uri": conninfo, "schema": schema}


def path_of(store: WrittenStore) -> str:
    assert isinstance(store.address, SqliteAddress)
    return store.address.directory


def read(session: SparkSession, store: WrittenStore, **options: object) -> DataFrame:
    given = {**place_of(store), **options}
    return session.read.format("headwater").options(**given).load()  # type: ignore[arg-type]


def stream(session: SparkSession, store: WrittenStore, **options: object) -> DataFrame:
    given = {**place_of(store), **options}
    return session.readStream.format("headwater").options(**given).load()  # type: ignore[arg-type]


def drain(rows: DataFrame, folder: Path) -> list[Row]:
    """Run a query over everything that is there, continuing where the folder's checkpoint says. Returns all rows that
    it and those before it have written, in the order of their ops."""
    writer = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    for left in (3, 2, 1, 0):
        try:
            writer.start().awaitTermination()
            break
        except StreamingQueryException as error:
            if left == 0 or SLOW_START not in str(error):
                raise
    return written_rows(rows.sparkSession, folder)


def written_rows(session: SparkSession, folder: Path) -> list[Row]:
    return sorted(session.read.parquet(str(folder / "out")).collect(), key=lambda row: row["op_id"])


def replay(rows: list[Row], standing: Counter[tuple[str, str, str]] | None = None) -> Counter[tuple[str, str, str]]:
    """Bucket, id and text of what stands after the ops."""
    state = {(bucket, row_id): text for bucket, row_id, text in standing or ()}
    for row in rows:
        match row["op"]:
            case "PUT":
                state[row["bucket"], row["id"]] = json.loads(row["data"])["text"]
            case "REMOVE":
                state.pop((row["bucket"], row["id"]), None)
            case "CLEAR":
                state = {key: text for key, text in state.items() if key[0] != row["bucket"]}
            case other:
                assert other == "MOVE"
    return Counter((bucket, row_id, text) for (bucket, row_id), text in state.items())


def some_history(store: WrittenStore) -> None:
    """Bulk work, changes, removals and a bucket that comes later."""
    store.publish({str(i): (A if i % 3 else B, f"text {i}") for i in range(3000)})
    for step in range(5):
        store.write({str(i): (A, f"step {step}") for i in range(step * 10, step * 10 + 20)})
    store.write({"1": None, "2": (C, "moved")})


@ONE_STORE_OFTEN
def test_a_batch_read_gives_every_op_with_its_place_and_content(session: SparkSession, stored: WrittenStore) -> None:
    some_history(stored)
    rows = sorted(read(session, stored).collect(), key=lambda row: row["op_id"])
    assert len({row["op_id"] for row in rows}) == len(rows)
    assert replay(rows) == stored.standing()
    put = rows[-2]
    assert (put["op"], put["bucket"], put["definition"], put["table"], put["id"]) == ("PUT", C, "notes", "todos", "2")
    assert json.loads(put["data"]) == {"text": "moved"}
    (removed,) = [row for row in rows if row["op"] == "REMOVE" and row["id"] == "1"]
    assert removed["data"] is None


def test_an_op_tells_source_position_and_time_of_its_flush(session: SparkSession, written: WrittenStore) -> None:
    written.publish({"1": (A, "bulk")})
    written.write({"2": (A, "live")}, committed_us=86_400_000_000)
    bulk, live = (read(session, written).where(f"id = '{number}'").collect()[0] for number in (1, 2))
    assert (bulk["commit_lsn"], bulk["committed_at"]) == (None, None)
    assert (live["source"], live["commit_lsn"]) == ("default", "0/6E")
    assert live["committed_at"].astimezone(UTC) == datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=1)


@ONE_STORE_OFTEN
def test_a_read_keeps_to_the_buckets_definitions_and_tables_asked_for(
    session: SparkSession, stored: WrittenStore
) -> None:
    some_history(stored)
    assert {row["bucket"] for row in read(session, stored, bucket=B).collect()} == {B}
    assert {row["bucket"] for row in read(session, stored, bucket=json.dumps([B, C])).collect()} == {B, C}
    assert {row["bucket"] for row in read(session, stored, definition="notes").collect()} == {C}
    assert read(session, stored, definition="notes", bucket=B).count() == 0
    assert {row["op"] for row in read(session, stored, table="others").collect()} == {"CLEAR"}
    assert read(session, stored, table="todos").count() == read(session, stored).count()


def test_a_dataframe_stays_as_it_was_when_it_was_made(session: SparkSession, written: WrittenStore) -> None:
    written.publish({"1": (A, "x")})
    ops, rows = read(session, written), read(session, written, snapshot=True)
    before = ops.count()
    written.write({"1": (A, "y"), "2": (A, "z")})
    assert ops.count() == before
    assert replay(rows.collect()) == Counter([(A, "1", "x")])


@pytest.mark.long
def test_a_large_range_is_read_by_several_tasks(session: SparkSession, written: WrittenStore) -> None:
    written.publish({str(i): (A if i % 2 else B, "x") for i in range(60_000)})
    rows = read(session, written)
    assert rows.rdd.getNumPartitions() == 2
    assert rows.select("op_id").distinct().count() == 60_002


@ONE_STORE_OFTEN
def test_a_stream_gives_each_op_once_and_continues(session: SparkSession, stored: WrittenStore, tmp_path: Path) -> None:
    some_history(stored)
    folder = tmp_path / "tap"
    ops = stream(session, stored, maxOpsPerBatch=1100)
    assert replay(drain(ops, folder)) == stored.standing()
    assert len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) >= 3
    stored.truncate()
    stored.write({"5": (B, "after")})
    rows = drain(stream(session, stored, maxOpsPerBatch=1100), folder)
    assert [row["op_id"] for row in rows] == sorted(row["op_id"] for row in read(session, stored).collect())
    assert replay(rows) == stored.standing() == Counter([(B, "5", "after")])


@pytest.mark.long
def test_a_stream_that_was_killed_between_batches_continues_without_loss_or_repeat(
    session: SparkSession, written: WrittenStore, tmp_path: Path
) -> None:
    some_history(written)
    folder = tmp_path / "tap"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.oplog_tap", path_of(written), str(folder), "300"], start_new_session=True
    ) as tap:
        metadata = folder / "out" / "_spark_metadata"
        wait_until(lambda: (metadata / "2").exists() or tap.poll() is not None, "three batches", seconds=120)
        os.killpg(tap.pid, signal.SIGKILL)  # Python and the JVM at once
    assert tap.returncode == -signal.SIGKILL, "the stream ended by itself"
    taken = len(written_rows(session, folder))
    written.write({"7": (B, "while nobody read")})
    rows = drain(stream(session, written, maxOpsPerBatch=300), folder)
    assert len(rows) > taken > 0
    assert [row["op_id"] for row in rows] == sorted(row["op_id"] for row in read(session, written).collect())
    assert replay(rows) == written.standing()


@pytest.mark.long
def test_a_stream_can_start_at_the_end_or_at_an_op(
    session: SparkSession, written: WrittenStore, tmp_path: Path
) -> None:
    some_history(written)
    middle = written.write({"10": (A, "before")}).op_id
    written.write({"11": (A, "after")})
    assert drain(stream(session, written, startingOffset="latest"), tmp_path / "latest") == []
    rows = drain(stream(session, written, startingOffset=middle), tmp_path / "middle")
    assert [row["id"] for row in rows] == ["11"]
    written.write({"12": (A, "later")})
    assert [row["id"] for row in drain(stream(session, written), tmp_path / "latest")] == ["12"]


@pytest.mark.long
def test_a_snapshot_and_the_stream_from_there_give_the_truth(
    session: SparkSession, stored: WrittenStore, tmp_path: Path
) -> None:
    some_history(stored)
    compact(stored.address, A)
    stored.write({"20": (A, "after the compaction")})
    rows = read(session, stored, snapshot=True).collect()
    assert {row["op"] for row in rows} == {"PUT"}
    snapshot = replay(rows)
    assert snapshot == stored.standing()
    (start,) = {row["checkpoint"] for row in rows}
    stored.write({"20": None, "21": (B, "later"), "22": (C, "later")})
    later = drain(stream(session, stored, startingOffset=start), tmp_path / "tap")
    assert replay(later, snapshot) == stored.standing()


@pytest.mark.long
@ONE_STORE_OFTEN
def test_a_stream_from_the_beginning_of_compacted_history_reaches_the_truth(
    session: SparkSession, stored: WrittenStore, tmp_path: Path
) -> None:
    some_history(stored)
    compact(stored.address, A, B)
    stored.write({"20": (A, "after the compaction")})
    rows = drain(stream(session, stored, maxOpsPerBatch=10), tmp_path / "tap")
    assert replay(rows) == stored.standing()


@pytest.mark.long
@ONE_STORE_OFTEN
def test_a_stream_overtaken_by_compaction_says_how_to_start_again(
    session: SparkSession, stored: WrittenStore, tmp_path: Path
) -> None:
    some_history(stored)
    folder = tmp_path / "tap"
    drain(stream(session, stored), folder)
    stored.write({"30": (A, "missed")})
    stored.write({"30": (A, "kept")})
    compact(stored.address, A)
    other = stream(session, stored, bucket=B, startingOffset=1)
    with pytest.raises(StreamingQueryException) as failure:
        drain(stream(session, stored), folder)
    said = str(failure.value)
    assert "[HW_4101] compaction merged the changes up to op" in said
    assert "snapshot=true" in said
    assert "startingOffset" in said
    assert replay(drain(other, tmp_path / "other")) == Counter(row for row in stored.standing() if row[0] == B)


@pytest.mark.long
def test_compaction_of_what_a_stream_has_read_does_not_stop_it(
    session: SparkSession, written: WrittenStore, tmp_path: Path
) -> None:
    some_history(written)
    folder = tmp_path / "tap"
    drain(stream(session, written), folder)
    written.write({"new": (B, "b moves on")})
    compact(written.address, A)
    written.write({"30": (A, "after")})
    assert replay(drain(stream(session, written), folder)) == written.standing()


@pytest.mark.long
@ONE_STORE_OFTEN
def test_an_empty_store_is_read_as_nothing(session: SparkSession, stored: WrittenStore, tmp_path: Path) -> None:
    assert read(session, stored).count() == 0
    assert read(session, stored, snapshot=True).count() == 0
    stored.publish({"1": (A, "x")})
    assert replay(drain(stream(session, stored), tmp_path / "tap")) == stored.standing()


def test_a_wrong_option_is_refused(session: SparkSession, written: WrittenStore) -> None:
    written.publish({"1": (A, "x")})
    with pytest.raises(PySparkException, match="there is no such option"):
        read(session, written, startingOffsets="latest").collect()
    with pytest.raises(PySparkException, match="the store has ops up to"):
        read(session, written, startingOffset=2**60).collect()


def test_a_store_that_is_not_there_is_named(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"there is no store \(.*nowhere/store.db\)"):
        session.read.format("headwater").load(str(tmp_path / "nowhere")).collect()


def test_no_password_is_shown(session: SparkSession, source_db: SourceDb, capfd: pytest.CaptureFixture[str]) -> None:
    reader = session.readStream.format("headwater").option("password", "hunter2")
    WrittenStore(PostgresAddress(source_db.dsn, "kept", "test")).close()
    reader.options(uri=source_db.dsn, schema="kept").load().explain("extended")
    with pytest.raises(PySparkException) as failure:
        reader.options(uri="postgresql://user@127.0.0.1:1/none").load()
    with pytest.raises(PySparkException, match="give it as the option password") as refused:
        session.read.format("headwater").option("uri", "postgresql://user:hunter2@127.0.0.1/none").load()
    shown = capfd.readouterr()
    assert "StreamingRelationV2" in shown.out
    assert "hunter2" not in shown.out + shown.err + str(failure.value) + str(refused.value)
