"""Bulk work in one process is what Spark does: the same parts, differences and findings of the same jobs.

Most tests of what bulk work is a part of rest on this.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw
import psutil
import psycopg
import pytest

import headwater.pipeline.snapshot
from headwater.bulk.contract import (
    CompareJob,
    CompareOutcome,
    Difference,
    RecountJob,
    RekeyJob,
    Report,
    ReprocessJob,
    SnapshotJob,
    Stop,
    VerifyJob,
    VerifyOutcome,
)
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.pipeline.compare import ComparedRow, RowsTask, SourceRows, StoreRows
from headwater.pipeline.engine import Found
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.snapshot import Partition
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.read import Leaf
from headwater.source.connect import SourceSettings
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import BulkOutcome, StagedPart
from headwater.storage.contract.store import StoredTable
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deployment
from tests.support.local_bulk import APPLICATION, LocalEngine, local_bulk
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark

SECONDS = 240.0

STREAMS = auto_streams(
    items="SELECT * FROM items WHERE owner = auth.user_id()",
    copies="SELECT copies.* FROM copies JOIN items ON copies.body = items.body WHERE items.owner = auth.user_id()",
)
ANOTHER = """
  bodies:
    auto_subscribe: true
    query: SELECT id, body FROM items AS bodies WHERE owner = auth.user_id()
"""


@dataclass
class Both:
    """Every job is done twice, and has to come to the same. What Spark made is used."""

    spark: BulkJobs
    local: BulkJobs = field(default_factory=local_bulk)
    done: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    compared: list[CompareOutcome] = field(default_factory=list)
    verified: list[VerifyJob] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None  # once each snapshot of a comparison was taken

    def warm_up(self) -> None:
        self.spark.warm_up()

    def preparing(self) -> str:
        return self.spark.preparing()

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        return self._parts("snapshot", lambda bulk: bulk.snapshot(job, progress))

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        return self._parts("reprocess", lambda bulk: bulk.reprocess(job, progress, stop))

    def rekey(self, job: RekeyJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        return self._parts("rekey", lambda bulk: bulk.rekey(job, progress, stop))

    def compare(self, job: CompareJob, progress: Report, found: Found, stop: Stop = None) -> CompareOutcome:
        self.done["compare"] += 1
        self.meanwhile()
        ours: list[Difference] = []
        theirs: list[Difference] = []
        local = self.local.compare(job, progress, ours.extend, stop)
        spark = self.spark.compare(job, progress, theirs.extend, stop)
        assert sorted(ours) == sorted(theirs)
        assert spark.application != local.application
        assert local == replace(spark, application=APPLICATION)
        self.differences += theirs
        self.compared.append(spark)
        found(theirs)
        return spark

    def recount(self, job: RecountJob, progress: Report, found: Found, stop: Stop = None) -> None:
        self.done["recount"] += 1
        ours: list[Difference] = []
        theirs: list[Difference] = []
        self.local.recount(job, progress, ours.extend, stop)
        self.spark.recount(job, progress, theirs.extend, stop)
        assert ours
        assert sorted(ours) == sorted(theirs)
        found(theirs)

    def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
        self.done["verify"] += 1
        self.verified.append(job)
        local, spark = self.local.verify(job, progress, stop), self.spark.verify(job, progress, stop)
        assert set(local.buckets) == set(spark.buckets)
        assert set(local.lookups) == set(spark.lookups)
        assert (local.ops, local.rows, local.tasks) == (spark.ops, spark.rows, spark.tasks)
        return spark

    def rows_in_buckets(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        self.done["standing"] += 1
        local, spark = (bulk.rows_in_buckets(job, buckets, progress, stop) for bulk in (self.local, self.spark))
        assert local == spark
        return spark

    def _parts(self, kind: str, run: Callable[[BulkJobs], BulkOutcome]) -> BulkOutcome:
        self.done[kind] += 1
        local, spark = run(self.local), run(self.spark)
        assert [contents(part) for part in local.parts] == [contents(part) for part in spark.parts]
        assert [described(part) for part in local.parts] == [described(part) for part in spark.parts]
        assert local.tasks == spark.tasks == len(spark.parts)
        for part in local.parts:
            Path(part.path).unlink()
        self.tasks[kind] = max(self.tasks[kind], spark.tasks)
        return spark


def described(part: StagedPart) -> StagedPart:
    """Without what tells one attempt from another."""
    return replace(part, path="", attempt="")


def contents(part: StagedPart) -> dict[str, str]:
    """A digest of each of its tables."""
    db = apsw.Connection(part.path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = ("rows", "lookups", "buckets", "segments")
        found = {table: db.execute(f"select * from {table} order by 1, 2").fetchall() for table in tables}
    finally:
        db.close()
    return {table: hashlib.sha256(repr(rows).encode()).hexdigest() for table, rows in found.items()}


@pytest.fixture
def both(spark_bulk: BulkJobs, monkeypatch: pytest.MonkeyPatch) -> Both:
    """Of tables in many parts each, small as they are."""
    monkeypatch.setattr(headwater.pipeline.snapshot, "SMALLEST_PAGES", 2)
    return Both(spark_bulk)


@pytest.fixture
def deployment(deploy: Callable[..., Deployment], source_db: SourceDb, both: Both) -> Deployment:
    source_db.execute("create table items (id int primary key, owner text, body text)")
    source_db.execute("insert into items select i, 'u' || i % 5, 'body ' || i % 70 from generate_series(1, 3000) i")
    source_db.execute("create table copies (body text, n int); alter table copies replica identity full")
    source_db.execute("insert into copies select 'body ' || i % 70, i % 20 from generate_series(1, 3000) i")
    deployment = deploy(STREAMS, bulk=cast("BulkJobs", both))
    return deployment.start()


@pytest.mark.timeout(900)  # it took two minutes on two cores that other tests had a share of
def test_every_kind_of_job_comes_to_the_same(
    deployment: Deployment, source_db: SourceDb, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert both.tasks["snapshot"] >= 8, "copies stand in several parts"

    def copy() -> None:
        with psycopg.connect(source_db.dsn, autocommit=True) as conn:
            conn.execute("insert into copies select * from copies where n = 5 limit 40")
            deployment.caught_up(conn)

    both.meanwhile = copy
    source_db.execute("alter table items add column extra text default 'filled'")
    source_db.execute("alter table copies add column extra int; update copies set extra = n where n = 3")
    wait_until(lambda: settled(deployment) and len(both.differences) >= 3000, "the comparison", SECONDS)

    assert all(outcome.partitions > 1 for outcome in both.compared)

    with monkeypatch.context() as small:
        small.setattr(headwater.pipeline.snapshot, "SMALLEST_PAGES", 1 << 10)
        source_db.execute("alter table items drop column extra")
        wait_until(lambda: settled(deployment) and len(both.differences) >= 6000, "the comparison", SECONDS)
    assert both.compared[-1].partitions == both.compared[-1].tasks == 1

    source_db.execute("alter table items replica identity full")
    wait_until(lambda: both.done["rekey"] > 0 and settled(deployment), "the re-key", SECONDS)

    deployment.redeploy(STREAMS + ANOTHER)
    audited = deployment.ask("audit")
    assert audited["state"] == "done"
    (job,) = both.verified[-1:]
    keys = [job.keys.bucket(name) for name in deployment.buckets("u1")]
    found = both.rows_in_buckets(job, keys[:1], lambda _: None)
    assert 0 < sum(map(len, found.values())) < 3000

    assert {"snapshot", "compare", "recount", "rekey", "reprocess", "verify", "standing"} == both.done.keys()


@dataclass(frozen=True)
class Source(SourceRows):
    """Made up."""

    given: tuple[ComparedRow, ...]

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        yield list(self.given)


@dataclass(frozen=True)
class Store(StoreRows):
    """Made up."""

    given: tuple[ComparedRow, ...]

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        yield list(self.given)


def kill_workers() -> None:
    """End the Python processes that Spark keeps for its next tasks."""
    below = psutil.Process().children(recursive=True)
    alive = [each for each in below if each.status() != psutil.STATUS_ZOMBIE]
    workers = [each for each in alive if "pyspark.daemon" in each.cmdline()]
    for process in workers:
        process.kill()
    psutil.wait_procs(workers, timeout=10)
    assert workers


@pytest.mark.long
def test_where_rows_meet_nothing_hides_what_differs(spark: Spark) -> None:
    """Two tables of rows that come up to three times on either side, some with another digest than they should."""
    dice = random.Random(5)
    tasks: list[RowsTask] = []
    for number in (1, 2):
        table = StoredTable(number, "default", (Relation(number, "public", "t", ReplicaIdentity.FULL, ()),), "")
        leaf = Leaf(number, "public", "t", number, 1, 1)
        published = PublishedTable(table.relation, (leaf,), None, "", "")
        rows = [ComparedRow(0, f"row {row}", row, f"line {row}") for row in range(200)]
        source = [row for row in rows for _ in range(dice.randint(0, 3))]
        stored = [
            row._replace(digest=row.digest + dice.choice([0, 0, 0, 1]) * 1000)
            for row in rows
            for _ in range(dice.randint(0, 3))
        ]
        dice.shuffle(stored)
        partition = Partition(published, leaf, 0, None, number)
        tasks.append(RowsTask(Source(table, partition, tuple(source)), 1, frozenset({0})))
        tasks += [RowsTask(Store(table, 0, 1, tuple(stored[half::2])), 1, frozenset({0})) for half in (0, 1)]
    settings = SourceSettings(host="", database="", user="")
    job = CompareJob(
        source=settings, snapshot="", tables=(), plans=(), types=TypeCatalog(), keys=StoreKeys(b""),
        store=SqliteAddress(""), directory="",
    )  # fmt: skip
    found: list[list[Difference]] = []
    for engine in (SparkEngine(spark), SparkEngine(spark), LocalEngine()):
        if len(found) == 1:
            kill_workers()  # idle ones, with which Spark would plan the next one
        found.append([])
        with engine.run(job, "comparison") as run:
            run.differences(tasks, found[-1].extend)
    assert sorted(found[0]) == sorted(found[1]) == sorted(found[2])
    assert 100 < len(found[0]) < 400
