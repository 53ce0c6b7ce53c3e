"""A lake as Spark reads it: counts of every bucket, and a stream of its files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from headwater.pipeline.spark.session import Spark
from headwater.storage.address import PostgresAddress, SqliteAddress
from tests.support.fix_postgres import SourceDb
from tests.support.lakes import export, manifest_of
from tests.support.model_device import ModelBucket
from tests.support.written_store import WrittenStore, catch_up, compact, shown

pytestmark = pytest.mark.spark

A, B, C = 'todos["a"]', 'todos["b"]', 'notes["c"]'
PAGE = Path(__file__).parents[2] / "docs" / "lake.md"


@pytest.fixture
def session(spark: Spark) -> SparkSession:
    return spark.session()


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WrittenStore]:
    """A store in each back end."""
    if request.param == "sqlite":
        address: SqliteAddress | PostgresAddress = SqliteAddress(str(tmp_path / "store"))
    else:
        database: SourceDb = request.getfixturevalue("source_db")
        address = PostgresAddress(database.dsn, "kept", "test")
    with closing(WrittenStore(address)) as store:
        store.publish({str(i): (A if i % 3 else B, f"text {i}") for i in range(1000)})
        yield store


def read(session: SparkSession, lake: Path) -> None:
    """Run the page's Python, but the stream, for this lake."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0].partition("changes =")[0]
    assert "/srv/lake" in code
    exec(code.replace("/srv/lake", str(lake)), {"spark": session})


def test_counts_are_those_of_a_device(session: SparkSession, stored: WrittenStore, tmp_path: Path) -> None:
    lake, device = tmp_path / "lake", {name: ModelBucket() for name in (A, B, C)}
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for step in range(3):
        stored.write({str(i): (A, f"step {step}") for i in range(step * 10, step * 10 + 20)})
        stored.write({str(100 + step): None, str(200 + step): (C, "moved"), str(300 + step): (B, "moved")})
        if step == 1:
            compact(stored.address, A, B)
        if step == 2:
            stored.truncate()
            stored.write({"5": (B, "after"), "6": (C, "after")})
        export(stored.address, lake)
        catch_up(stored.address, device)
        held = {name: len(model.rows) for name, model in device.items() if model.rows}
        read(session, lake)
        found = session.sql(query).collect()
        assert Counter((row.bucket, row.object_id, json.loads(row.data)["text"]) for row in found) == shown(device)
        by_ops = session.sql(f"select bucket, count(*) as rows from ({query}) group by bucket").collect()
        by_snapshot = session.sql("select bucket, count(*) as rows from buckets group by bucket").collect()
        for counted in (by_ops, by_snapshot):
            assert {row["bucket"]: row["rows"] for row in counted} == held
        (rows,) = session.sql("select count(distinct row_id) as number from rows").collect()
        assert rows["number"] == len(stored.rows)


@pytest.mark.parametrize("stored", ["sqlite"], indirect=True)
def test_stream_has_each_op_once(session: SparkSession, stored: WrittenStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    found: list[Row] = []
    for step in range(2):
        stored.write({str(i): (A, f"step {step}") for i in range(20)})
        export(stored.address, lake, ops_per_file=300)
        schema = session.read.parquet(f"{lake}/ops").schema
        (
            session.readStream.schema(schema)
            .parquet(f"{lake}/ops")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        found = session.read.parquet(str(tmp_path / "out")).collect()
        ids = [row["op_id"] for row in found]
        assert len(ids) == len(set(ids)) == session.read.parquet(f"{lake}/ops").count()
        assert max(ids) == manifest_of(lake)["checkpoint"]
