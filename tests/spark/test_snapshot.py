"""Bulk work on a real Spark: that it is Spark that does it, and that it gives what the stream would have given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from pyspark import SparkContext

from headwater.bulk.contract import BulkProgress, SnapshotJob, SnapshotTable
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.oplog.keys import StoreKeys
from headwater.pipeline import jobs
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.snapshot import LARGEST_PAGES, CountedCopies, SnapshotTask, partitions
from headwater.pipeline.spark.session import Spark
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import load_types
from headwater.source.rows.copy import TableChangedError
from headwater.source.slot import SnapshotKeeper
from headwater.storage.address import PostgresAddress, SqliteAddress
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.sqlite.writer import SqliteWriter
from headwater_rules.compiler.compile import compile_config
from tests.integration.type_cases import CASES, CUSTOM_TYPES
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb, skip_without
from tests.support.local_bulk import local_bulk
from tests.support.sync_configs import OWN_ITEMS

pytestmark = pytest.mark.spark


class SparkJob(NamedTuple):
    """A job, and how many of its tasks ended in either way."""

    id: int
    completed: int
    failed: int


def spark_jobs(context: SparkContext) -> dict[int, SparkJob]:
    """The last jobs, by id."""
    jobs = context._jsc.sc().statusStore().jobsList(None)
    found = (jobs.apply(number) for number in range(jobs.size()))
    return {job.jobId(): SparkJob(job.jobId(), job.numCompletedTasks(), job.numFailedTasks()) for job in found}


def test_every_part_of_a_snapshot_was_written_by_a_spark_task(
    deploy: Deploy, source_db: SourceDb, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts bear the id of the task attempt that wrote them, which only Spark gives out, and Spark knows of the job."""
    source_db.execute("create table items (id text primary key, owner text)")
    source_db.execute("insert into items values ('1', 'a')")
    deployment = deploy(OWN_ITEMS)
    before = spark_jobs(spark.context())
    parts: list[StagedPart] = []
    stage = SqliteWriter.stage

    def spy(store: SqliteWriter, lease: object, staged: Sequence[StagedPart]) -> None:
        parts.extend(staged)
        stage(store, lease, staged)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteWriter, "stage", spy)
    deployment.start()
    assert parts
    assert all(part.attempt.isdigit() for part in parts)
    (job,) = (job for number, job in spark_jobs(spark.context()).items() if number not in before)
    assert job.completed == len(parts)
    assert deployment.bulk_records()[0].tasks == len(parts)


@pytest.mark.parametrize("identity", ["default", "full", "nothing"])
def test_bulk_equals_stream(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    """The same rows of every type, once by snapshot and once by the stream, stand alike in the buckets."""
    skip_without("xml", source_db.connection)
    source_db.execute(CUSTOM_TYPES)
    columns = ", ".join(f"c{number} {case.type}" for number, case in enumerate(CASES))
    key = "primary key" if identity == "default" else ""
    source_db.execute(f"create table items (id int {key}, owner text, {columns})")
    source_db.execute(f"alter table items replica identity {identity}")
    marks = ", %s" * len(CASES)
    for row in range(max(len(case.values) for case in CASES)):
        values = [case.values[row % len(case.values)][0] for case in CASES]
        for copy in range(3 if identity != "default" else 1):
            source_db.execute(f"insert into items values (%s, 'a'{marks})", row * 10 + copy % 2, *values)
    source_db.execute("create table kept as table items")
    deployment = deploy(
        OWN_ITEMS.replace("SELECT *", "SELECT *, id AS id") if identity == "default" else OWN_ITEMS
    ).start()
    bulk = live_rows(deployment, with_ids=identity != "nothing")
    assert bulk
    source_db.execute("truncate items")
    assert not live_rows(deployment, with_ids=True)
    source_db.execute("insert into items select * from kept")
    assert live_rows(deployment, with_ids=identity != "nothing") == bulk


def live_rows(deployment: Deployment, *, with_ids: bool) -> Counter[tuple[str, ...]]:
    """What stands in user a's buckets: table, id (if rows have one that lasts) and data."""
    deployment.caught_up()
    rows: Counter[tuple[str, ...]] = Counter()
    for bucket in deployment.buckets("a").values():
        for (table, object_id, _), (_, data, _) in bucket.rows.items():
            rows[(table, object_id, data) if with_ids else (table, data)] += 1
    return rows


@pytest.fixture
def job(deploy: Deploy, source_db: SourceDb, tmp_path: Path) -> Iterator[SnapshotJob]:
    """A snapshot of one table with 2,000 rows, whose keeper lives as long as the test."""
    source_db.execute("create table items (id int primary key, owner text, body text)")
    source_db.execute("insert into items select i, 'a', repeat('x', 500) from generate_series(1, 2000) i")
    source_db.execute("create publication headwater for table items")
    settings, plan = deploy(OWN_ITEMS).settings, compile_config(OWN_ITEMS).plan
    with SnapshotKeeper(settings, f"{settings.slot_prefix}job") as keeper, psycopg.connect(source_db.dsn) as conn:
        tables = wanted_tables(conn, settings, [plan])
        types = load_types(conn, {column.type_oid for table in tables for column in table.relation.columns})
        conn.commit()
        yield SnapshotJob(
            source=settings,
            snapshot=keeper.snapshot,
            tables=tuple(SnapshotTable(number, table) for number, table in enumerate(tables, 1)),
            plan=plan,
            types=types,
            keys=StoreKeys(b"secret"),
            store=SqliteAddress(str(tmp_path)),
            directory=str(tmp_path / "stage"),
        )


def test_rows_committed_after_the_snapshot_are_not_read(
    job: SnapshotJob, source_db: SourceDb, spark_bulk: BulkJobs
) -> None:
    source_db.execute("insert into items select i, 'a', 'later' from generate_series(2001, 9000) i")
    reports: list[BulkProgress] = []
    outcome = spark_bulk.snapshot(job, reports.append)
    assert sum(part.rows for part in outcome.parts) == 2000
    assert outcome.tasks == len(outcome.parts) > 0
    assert reports[0].rows == 0
    assert (reports[-1].rows, reports[-1].tasks) == (2000, outcome.tasks)


@pytest.mark.parametrize(
    "change", ["truncate items", "alter table items alter owner type varchar(9)", "alter table items drop column body"]
)
def test_a_table_that_changed_since_is_refused_instead_of_read_as_empty(
    job: SnapshotJob, source_db: SourceDb, change: str
) -> None:
    source_db.execute(change)
    with pytest.raises(TableChangedError) as failure:
        local_bulk().snapshot(job, lambda _: None)
    assert failure.value.kind is Kind.RESYNC


def test_what_a_task_refuses_spark_tells(job: SnapshotJob, source_db: SourceDb, spark_bulk: BulkJobs) -> None:
    source_db.execute("truncate items")
    with pytest.raises(TableChangedError) as failure:
        spark_bulk.snapshot(job, lambda _: None)
    assert failure.value.kind is Kind.RESYNC


def test_what_a_task_fails_of_is_tried_again(
    job: SnapshotJob, source_db: SourceDb, spark_bulk: BulkJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "measured", lambda _, tables: tables)  # else that is the first to notice
    unreachable = replace(job, source=replace(job.source, database=f"{source_db.name}_is_not_there"))
    for bulk in (spark_bulk, local_bulk()):
        with pytest.raises(HeadwaterError) as failure:
            bulk.snapshot(unreachable, lambda _: None)
        assert failure.value.kind is Kind.RETRY
        assert "_is_not_there" in str(failure.value)


def test_a_store_that_tasks_can_not_reach_is_told_from_a_failed_job(job: SnapshotJob, spark_bulk: BulkJobs) -> None:
    unreachable = replace(job, store=PostgresAddress("host=127.0.0.1 port=1", place="nowhere"))
    for bulk in (spark_bulk, local_bulk()):
        with pytest.raises(
            StoreUnreachableError, match=r"^\[HW_4008\] the store's database cannot be reached: "
        ) as failure:
            bulk.snapshot(unreachable, lambda _: None)
        assert str(failure.value).count("HW_4008") == 1


def test_a_failed_attempt_leaves_no_part(job: SnapshotJob, source_db: SourceDb) -> None:
    (partition, *_) = partitions(job.tables, 1)
    source_db.execute("truncate items")
    with pytest.raises(TableChangedError):
        SnapshotTask(partition, CountedCopies()).run(job, 7, "7")
    assert list(Path(job.directory).iterdir()) == []


def test_ranges_cover_every_page_once(job: SnapshotJob) -> None:
    parts = partitions(job.tables, 4)
    assert parts[0].first == 0
    assert parts[-1].end is None
    assert all(before.end == after.first for before, after in pairwise(parts))
    assert all(part.end is None or part.end - part.first <= LARGEST_PAGES for part in parts)
