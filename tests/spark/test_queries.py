"""Computed tables whose query Spark runs, over files: what devices get of them."""

from __future__ import annotations

import datetime
import logging
import os
import threading
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from headwater.embedded.java import NoJavaError
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.query import SparkResult
from headwater.pipeline.spark.session import Spark
from headwater.replication.computed import RefreshState
from headwater.source.rows.query import ComputedTableError
from headwater_rules.plan import ComputedTable, Refresh
from tests.support.command import Outcome, Run, headwater
from tests.support.computed_truth import refresh_state, shown
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SECONDS = 280.0  # with the start of Spark beside others
OFTEN = "{every: 200ms, least: 0s}"
ONCE = "{every: 1d, least: 0s}"


def config(query: str, refresh: str = ONCE, kind: str = "spark") -> str:
    return f"""
config: {{edition: 3}}
tables:
  stock:
    {kind}: {orjson.dumps(query).decode()}
    key: [id]
    refresh: {refresh}
streams:
  all: {{auto_subscribe: true, query: "SELECT * FROM stock"}}
"""


def state(deployment: Deployment) -> RefreshState:
    return refresh_state(deployment, "stock")


def refreshed(deployment: Deployment) -> RefreshState:
    """Wait until a refresh has succeeded that began after now."""
    begun = state(deployment).at
    wait_until(lambda: state(deployment).at > begun, "a refresh", SECONDS)
    last = state(deployment).at
    wait_until(lambda: state(deployment).at > last, "another refresh", SECONDS)
    return state(deployment)


def first(deployment: Deployment) -> RefreshState:
    wait_until(lambda: state(deployment).at > 0, "the first refresh", SECONDS)
    return state(deployment)


def failed(deployment: Deployment) -> RefreshState:
    wait_until(lambda: bool(state(deployment).code), "a finding", SECONDS)
    return state(deployment)


def write(lake: Path, rows: dict[int, int], name: str = "part-0.parquet") -> None:
    lake.mkdir(exist_ok=True)
    table = pa.table({"id": list(rows), "n": list(rows.values())})
    # Files of as many rows have the same size
    pq.write_table(table, lake / f".{name}", compression="none", use_dictionary=False, write_statistics=False)
    (lake / f".{name}").replace(lake / name)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    write(tmp_path / "lake", {number: number for number in range(1_000)})
    return tmp_path / "lake"


def test_table_that_is_overwritten_sends_what_differs(
    deploy: Deploy, source_db: SourceDb, spark: Spark, tmp_path: Path
) -> None:
    session, nightly = spark.session(), str(tmp_path / "nightly")

    def overwrite(night: int) -> None:
        rows = session.range(10_000).selectExpr("id", f"if(id % 100 = 7, id + {night}, id) AS n", "'x' || id AS name")
        rows.repartition(3).write.mode("overwrite").parquet(nightly)

    overwrite(0)
    deployment = deploy(config(f"SELECT * FROM parquet.`{nightly}`", OFTEN)).start()
    assert first(deployment).rows == 10_000
    before = deployment.op_count()
    overwrite(1)
    wait_until(lambda: deployment.op_count() > before, "what differs", SECONDS)
    assert deployment.op_count() == before + 100
    assert shown(deployment)["107"] == {"id": 107, "n": 108, "name": "x107"}
    assert len(shown(deployment)) == 10_000


def test_files_that_are_the_same_are_not_read_again(deploy: Deploy, source_db: SourceDb, lake: Path) -> None:
    deployment = deploy(config(f"SELECT id, n FROM parquet.`{lake}`", OFTEN)).start()
    first(deployment)
    version = refreshed(deployment).version
    assert version
    kept = (lake / "part-0.parquet").stat()
    write(lake, {number: 999 - number for number in range(1_000)})
    os.utime(lake / "part-0.parquet", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert (lake / "part-0.parquet").stat().st_size == kept.st_size
    assert refreshed(deployment).version == version
    assert shown(deployment)["7"] == {"id": 7, "n": 7}, "nobody has looked into the file"
    write(lake, {7: 70}, "part-1.parquet")
    (lake / "part-0.parquet").unlink()
    wait_until(lambda: shown(deployment) == {"7": {"id": 7, "n": 70}}, "the other file", SECONDS)
    assert state(deployment).version != version
    write(lake, {7: 71}, "part-1.parquet")
    wait_until(lambda: shown(deployment) == {"7": {"id": 7, "n": 71}}, "the file under the same name", SECONDS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT TRANSFORM(id) USING 'cat' AS (id int) FROM parquet.`{}`",
        "SELECT id FROM parquet.`{}` TABLESAMPLE (99 PERCENT)",
    ],
)
def test_result_of_chance_or_of_a_program_has_no_version(spark: Spark, lake: Path, query: str) -> None:
    with closing(result_of(spark, query.format(lake))) as result:
        result.open()
        assert result.version == ""


def test_two_results_at_once_are_of_files_of_their_own_time(spark: Spark, lake: Path) -> None:
    """As of shards, which have the same query. Spark takes a result that it keeps for that of the other."""
    query = f"SELECT id, n FROM parquet.`{lake}`"
    with closing(result_of(spark, query)) as early, closing(result_of(spark, query)) as late:
        rows = early.lines(early.open().relation, 1)
        next(rows)
        write(lake, {7: 70})
        relation = late.open().relation
        assert late.version != early.version
        assert [line for batch in late.lines(relation, 1) for line in batch] == ["7\t70"]
        assert sum(len(batch) for batch in rows) == 999


def test_file_that_is_gone_is_named_by_what_spark_met(spark: Spark, lake: Path) -> None:
    with closing(result_of(spark, f"SELECT id, n FROM parquet.`{lake}`")) as result:
        relation = result.open().relation
        (lake / "part-0.parquet").unlink()
        with pytest.raises(ComputedTableError) as caught:
            list(result.lines(relation, 1))
    assert caught.value.what == "Spark refuses the query: FileNotFoundException"


def result_of(spark: Spark, query: str) -> SparkResult:
    table = ComputedTable("default", "stock", query, ("id",), Refresh(timeout=600.0), spark=True)
    return SparkResult(spark, None, table, threading.Event())


@pytest.mark.parametrize(
    ("query", "code", "said"),
    [
        ("SELECT * FROM parquet.`{lake}` UNION ALL SELECT 7, 7", "HW_2703", "1 keys (id) are in several rows"),
        pytest.param(
            "SELECT nullif(id, 7) AS id FROM parquet.`{lake}`", "HW_2704", "no value in id", marks=pytest.mark.long
        ),
        ("SELECT n FROM parquet.`{lake}`", "HW_2705", "no column id"),
        ("SELECT id, price FROM parquet.`{lake}`", "HW_2701", "UNRESOLVED_COLUMN"),
        pytest.param("SELECT id, n FROM parquet.`{lake}/none`", "HW_2701", "PATH_NOT_FOUND", marks=pytest.mark.long),
        ("SELECT id, CAST(concat('secret', n) AS int) AS n FROM parquet.`{lake}`", "HW_2701", "CAST_INVALID_INPUT"),
        pytest.param(
            "SELECT id, INTERVAL 1 DAY AS n FROM parquet.`{lake}`",
            "HW_2701",
            "the column n has the type interval day",
            marks=pytest.mark.long,
        ),
        ("DROP TABLE IF EXISTS stock", "HW_2701", "PARSE_SYNTAX_ERROR"),
        pytest.param(
            "SELECT id, n FROM parquet.`{lake}`; DROP TABLE stock",
            "HW_2701",
            "PARSE_SYNTAX_ERROR",
            marks=pytest.mark.long,
        ),
    ],
)
def test_fault_of_query_keeps_rows_and_is_found(
    deploy: Deploy, source_db: SourceDb, lake: Path, query: str, code: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment = deploy(config(f"SELECT id, n FROM parquet.`{lake}` WHERE id < 3")).start()
    first(deployment)
    before = shown(deployment)
    deployment.stop()
    deployment.yaml = config(query.format(lake=lake))
    deployment.start()
    found = failed(deployment)
    assert found.code == code
    assert said in found.what
    assert "secret" not in found.what
    assert "secret" not in capfd.readouterr().err
    assert shown(deployment) == before
    assert len(before) == 3


def test_slow_query_is_ended(deploy: Deploy, source_db: SourceDb) -> None:
    query = "SELECT count(*) AS id FROM range(10000000000) a CROSS JOIN range(1000000)"
    deployment = deploy(config(query, "{every: 1d, timeout: 1s}")).start()
    assert failed(deployment).code == "HW_2702"


def test_replicator_stops_while_query_runs(deploy: Deploy, source_db: SourceDb, spark: Spark) -> None:
    deployment = deploy(config("SELECT count(*) AS id FROM range(10000000000) a CROSS JOIN range(1000000)")).start()
    running = spark.context().statusTracker().getActiveJobsIds
    wait_until(running, "the query", SECONDS)
    deployment.stop()
    wait_until(lambda: not running(), "the end of the query", SECONDS)


def test_queries_need_the_consent_of_the_service(deploy: Deploy, source_db: SourceDb) -> None:
    bulk = BulkJobs(SparkEngine(Spark(SparkSettings())))
    deployment = deploy(config("SELECT 1 AS id"), bulk=bulk).start()
    assert failed(deployment).code == "HW_2708"
    assert shown(deployment) == {}


VALUES = """SELECT 1 AS id, true AS yes, CAST(-3 AS tinyint) AS tiny, CAST(9007199254740993 AS bigint) AS large,
    CAST(1.5 AS float) AS f4, CAST(1e300 AS double) AS f8, CAST('12345678901234567890.5000' AS decimal(30, 4)) AS exact,
    CAST('0' AS decimal(38, 18)) AS zero, DATE '2024-02-29' AS day, TIMESTAMP '2024-01-02 03:04:05.120+02:00' AS at,
    TIMESTAMP_NTZ '2024-01-02 03:04:05' AS local, X'00ff5c' AS bytes, 'a\\\\b\\tc\\nd\\u0000é' AS said,
    array(1, 2, NULL) AS many, named_struct('a', 1, 'b', NULL, 'c', 'x"\\\\y') AS part, map('k', 1.5) AS pairs,
    named_struct('at', TIMESTAMP '2024-01-02 03:04:05.123456', 'local', TIMESTAMP_NTZ '2024-01-02 03:04:05') AS times,
    'A\\tb' COLLATE UNICODE_CI AS loose, 'C\\nd\\u0000 ' COLLATE UTF8_LCASE_RTRIM AS looser,
    map('É\\t' COLLATE UNICODE_CI_AI, 'x') AS loosely, CAST(NULL AS string) AS lacking, NULL AS nothing"""

AS_POSTGRES = r"""SELECT 1 AS id, true AS yes, (-3)::int2 AS tiny, 9007199254740993 AS large, 1.5::float4 AS f4,
    1e300::float8 AS f8, 12345678901234567890.5000::numeric(30, 4) AS exact, 0::numeric(38, 18) AS zero,
    date '2024-02-29' AS day, timestamptz '2024-01-02 03:04:05.120+02:00' AS at,
    timestamp '2024-01-02 03:04:05' AS local, '\x00ff5c'::bytea AS bytes, E'a\\b\tc\ndé' AS said,
    '[1,2,null]'::json AS many, '{"a":1,"b":null,"c":"x\"\\y"}'::json AS part, '{"k":1.5}'::json AS pairs,
    '{"at":"2024-01-02T03:04:05.123456Z","local":"2024-01-02T03:04:05.000000"}'::json AS times,
    E'A\tb' AS loose, E'C\nd ' AS looser, '{"É\t":"x"}'::json AS loosely,
    null::text AS lacking, null::text AS nothing"""


def test_values_are_those_that_rows_of_postgres_have(deploy: Deploy, source_db: SourceDb, tmp_path: Path) -> None:
    ours = deploy(config(AS_POSTGRES, kind="query"), tmp_path / "ours").start()
    first(ours)
    expected = shown(ours)
    ours.stop()
    deployment = deploy(config(VALUES)).start()
    first(deployment)
    assert state(deployment).code == "", state(deployment).what
    assert shown(deployment) == expected
    assert expected["1"]["large"] == 9007199254740993


def test_times_far_away_are_written_as_in_postgres(deploy: Deploy, source_db: SourceDb, tmp_path: Path) -> None:
    days = {1: datetime.date(1, 1, 1), 2: datetime.date(9999, 12, 31)}
    table = pa.table({"id": list(days), "day": list(days.values()), "n": [Decimal("0.10"), None]})
    pq.write_table(table, tmp_path / "days.parquet")
    query = (
        f"SELECT id, day, n FROM parquet.`{tmp_path}/days.parquet`"
        " UNION ALL SELECT 3, DATE '-0043-03-15', 1 UNION ALL SELECT 4, DATE '+10001-01-01', 2"
    )
    deployment = deploy(config(query)).start()
    first(deployment)
    assert {row_id: row["day"] for row_id, row in shown(deployment).items()} == {
        "1": "0001-01-01",
        "2": "9999-12-31",
        "3": "0044-03-15 BC",
        "4": "10001-01-01",
    }


@pytest.fixture
def check(source_db: SourceDb, tmp_path: Path) -> Callable[..., Path]:
    """Write a service config, and a sync config to check."""

    def write(query: str, reads: str = "SELECT * FROM stock WHERE n > 1") -> Path:
        (tmp_path / "headwater.yaml").write_text(
            f"replication: {{connections: [{{uri: '{source_db.uri}', sslmode: disable}}]}}\nspark: {{queries: true}}\n"
        )
        (tmp_path / "sync.yaml").write_text(config(query).replace("SELECT * FROM stock", reads))
        return tmp_path

    return write


_CHECK = ("rules", "check", "sync.yaml", "--schema")


@pytest.mark.long
def test_check_asks_spark(check: Callable[..., Path], lake: Path) -> None:
    def checked(*config: str) -> tuple[int, str]:
        """In a process of its own, which ends its Spark."""
        outcome = headwater(*_CHECK, cwd=check(*config))
        return outcome.code, outcome.err

    query = f"SELECT * FROM parquet.`{lake}`"
    code, said = checked(query, "SELECT id, m FROM stock WHERE n > 1")
    assert "no column `m` in `stock`" in said
    code, said = checked(f"SELECT id, price FROM parquet.`{lake}`")
    assert code == 1
    assert "Spark can't compute `stock`" in said
    assert checked(query)[0] == 0


def test_check_without_spark_says_so(
    check: Callable[..., Path], headwater_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise NoJavaError("Spark needs Java")

    monkeypatch.setattr("headwater.pipeline.spark.session.java_home", none)
    check("SELECT 1 AS id, 2 AS n")
    outcome = headwater_here(*_CHECK)
    assert outcome.code == 0, "the table may be right"
    assert "Spark can't compute `stock`: Spark needs Java" in outcome.err


@pytest.mark.long
def test_row_is_forgotten_once_the_lake_has_lost_it(
    deploy: Deploy, source_db: SourceDb, lake: Path, tmp_path: Path
) -> None:
    deployment = deploy(config(f"SELECT id, 'person ' || n AS n FROM parquet.`{lake}`")).start()
    first(deployment)
    storage = f"storage: {{type: sqlite, path: '{deployment.directory}'}}\n"
    connections = f"replication: {{connections: [{{uri: '{source_db.uri}', sslmode: disable}}]}}\n"

    def forget(*options: str, consent: str = "true") -> Outcome:
        """In a process of its own, which ends its Spark."""
        (tmp_path / "headwater.yaml").write_text(f"{connections}{storage}spark: {{queries: {consent}}}\n")
        return headwater("store", "forget", *options, "--yes", cwd=tmp_path)

    refused = forget("--table", "stock", "--id", "7", consent="false")
    assert (refused.code, "HW_2708" in refused.err) == (1, True), refused.err
    for options in (("--table", "stock", "--id", "7"), ("--contains", "person 777")):
        refused = forget(*options)
        assert (refused.code, "HW_8401" in refused.err) == (1, True), refused.err
        assert "computed table stock" in refused.err
    write(lake, {8: 8})
    deployment.ask("resync", tables=["stock"])
    forgotten = forget("--contains", "person 777")
    assert forgotten.code == 0, forgotten.err
    assert "it is gone" in forgotten.out


def test_errors_of_queries_leave_other_lines_as_they_are(spark: Spark) -> None:
    """A logger of PySpark's own class changes the format of each handler that is added to it."""
    with pytest.raises(PySparkException):
        spark.session().sql("SELECT gone FROM range(1)").collect()
    handler = logging.StreamHandler()
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.removeHandler(handler)
    assert handler.formatter is None
