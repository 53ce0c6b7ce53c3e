"""What becomes of tasks: a value, whether it is a result or an error, and an end as soon as nobody wants more."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest
from pyspark.sql import SparkSession, functions

from headwater.bulk.contract import CompareJob, Difference, GivenUpError
from headwater.codes import Kind
from headwater.decode.types import TypeCatalog
from headwater.errors import HeadwaterError, MachineError
from headwater.oplog.change import Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.pipeline.compare import ComparedRow, RowsTask, SourceRows, StoreRows
from headwater.pipeline.engine import Task
from headwater.pipeline.snapshot import Partition
from headwater.pipeline.spark.differences import differing_rows, rows_of
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.source.connect import SourceSettings
from headwater.source.rows.copy import TableChangedError
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.store import StoredTable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from headwater.source.catalog.published import PublishedTable
    from headwater.source.catalog.read import Leaf

pytestmark = pytest.mark.spark


class Passing(HeadwaterError):
    """An error that another attempt does not meet."""

    code = "HW_5101"


@dataclass(frozen=True)
class Fails:
    """A task that fails as long as there are attempts in `directory` to be taken away."""

    error: Exception
    directory: str = ""

    def run(self, job: None, number: int, attempt: str) -> str:
        attempts = sorted(Path(self.directory).iterdir()) if self.directory else []
        if self.directory and not attempts:
            return attempt
        for first in attempts[:1]:
            first.unlink()
        raise self.error


@dataclass(frozen=True)
class FailsForGood:
    """A task that leaves a file in `directory` each time that it fails."""

    error: Exception
    directory: str

    def run(self, job: None, number: int, attempt: str) -> None:
        Path(self.directory, attempt).touch()
        raise self.error


@dataclass(frozen=True)
class Hangs:
    """A task without end. Tells of its process in `directory`."""

    directory: str

    def run(self, job: None, number: int, attempt: str) -> None:
        Path(self.directory, f"{number}").write_text(str(os.getpid()))
        while True:
            time.sleep(1)


@dataclass(frozen=True)
class Answers:
    """A task that is done at once."""

    def run(self, job: None, number: int, attempt: str) -> int:
        return number


@dataclass(frozen=True)
class Kept:
    """Tells how many objects of its process are there for good."""

    def run(self, job: None, number: int, attempt: str) -> int:
        return gc.get_freeze_count()


@pytest.fixture
def engine(spark: Spark) -> SparkEngine:
    return SparkEngine(spark)


def both(first: Task[None, object], second: Task[None, object]) -> list[Task[None, object]]:
    return [first, second]


def hanging(directory: Path) -> list[int]:
    """Processes of tasks without end that still run."""
    pids = [int(path.read_text() or 0) for path in directory.iterdir()]
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_an_error_of_a_task_arrives_as_it_is_and_no_attempt_is_made_again(engine: SparkEngine, tmp_path: Path) -> None:
    changed = TableChangedError("a table was truncated", "public.items", "it is read again")
    with pytest.raises(TableChangedError) as failure, engine.run(None, "test") as run:
        run.tasks(both(Answers(), FailsForGood(changed, str(tmp_path))))
    assert failure.value.args == changed.args
    assert len(list(tmp_path.iterdir())) == 1


def test_other_errors_may_go_better_the_next_time(engine: SparkEngine) -> None:
    stopping = HeadwaterError("the disk is full", "/var", "make room")
    for error, text in (
        (stopping, "[HW_0000] the disk is full (/var); make room"),
        (ValueError("odd"), "ValueError: odd"),
    ):
        with pytest.raises(HeadwaterError) as failure, engine.run(None, "test") as run:
            run.tasks(both(Fails(error), Answers()))
        assert failure.value.kind is Kind.RETRY
        assert text in str(failure.value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "the machine refuses: Input/output error"),
        (MemoryError(), "there is not enough memory"),
    ],
)
def test_what_the_machine_of_a_task_lacks_is_told_as_it_is(engine: SparkEngine, error: Exception, text: str) -> None:
    with pytest.raises(MachineError, match=text), engine.run(None, "test") as run:
        run.tasks([Fails(error)])


def test_what_may_pass_is_tried_again_under_another_name(engine: SparkEngine, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}").touch()
    with engine.run(None, "test") as run:
        (attempt,) = run.tasks([Fails(Passing("not now"), str(tmp_path))])
    assert attempt.endswith("rr")


def test_after_a_task_spark_does_not_look_for_garbage_in_modules(engine: SparkEngine) -> None:
    with engine.run(None, "test") as run:
        assert max(run.tasks([Kept()] * 3 * run.parallelism)) > 10_000


def test_the_first_error_ends_the_other_tasks(engine: SparkEngine, tmp_path: Path) -> None:
    changed = TableChangedError("a table was truncated", "public.items")
    with pytest.raises(TableChangedError), engine.run(None, "test") as run:
        run.tasks(both(Fails(changed), Hangs(str(tmp_path))) * 4)
    wait_until(lambda: not hanging(tmp_path), "the other tasks to end")


def test_a_job_that_is_given_up_frees_its_cores(engine: SparkEngine, tmp_path: Path) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with engine.run(None, "test", stop) as run:
                run.tasks([Hangs(str(tmp_path))] * 2 * run.parallelism)
        except GivenUpError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.iterdir()), "a task to run")
    stop.set()
    worker.join(30)
    assert len(errors) == 1
    wait_until(lambda: not hanging(tmp_path), "its tasks to end")
    with engine.run(None, "test") as run:
        assert run.tasks([Answers()] * 4) == [0, 1, 2, 3]


def test_a_job_that_is_given_up_before_it_begins_does_nothing(engine: SparkEngine, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(GivenUpError), engine.run(None, "test", stop) as run:
        run.tasks([Hangs(str(tmp_path))])
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Truncated(StoreRows):
    """Rows that can't be read any more. Leaves a file in `directory` for each attempt to read them."""

    directory: str

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        Path(self.directory, str(uuid.uuid4())).touch()
        yield [ComparedRow(0, "1", 1, "")]
        raise TableChangedError("a table was truncated", "public.items")


@dataclass(frozen=True)
class Endless(StoreRows):
    """Rows without end, read by a task that tells of its process in a directory."""

    directory: str

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        yield [ComparedRow(0, "1", 1, "")]
        Hangs(self.directory).run(None, 0, "")


JOB = CompareJob(
    source=SourceSettings("", "", ""), snapshot="", tables=(), plans=(), types=TypeCatalog(), keys=StoreKeys(b""),
    store=SqliteAddress(""), directory="",
)  # fmt: skip
IN_PIECES = replace(JOB, source=SourceSettings("", "", "", memory_bytes=4_000))
TABLE = StoredTable(1, "default", (Relation(1, "public", "items", ReplicaIdentity.DEFAULT, ()),), "")


def test_where_rows_meet_an_error_is_a_value_too(engine: SparkEngine, tmp_path: Path) -> None:
    found: list[Difference] = []
    task = RowsTask(Truncated(TABLE, 0, 1, str(tmp_path)), 1, frozenset({0}))
    with pytest.raises(TableChangedError) as failure, engine.run(JOB, "test") as run:
        run.differences([task], found.extend)
    assert failure.value.where == "public.items"
    assert found == []
    assert len(list(tmp_path.iterdir())) == 1


ROWS = 100


@dataclass(frozen=True)
class ReadOnce(SourceRows):
    """Rows that can't be read a second time. `directory` is empty before the first."""

    directory: str

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        if list(Path(self.directory).iterdir()):
            raise TableChangedError("a table was truncated", "public.items")
        Path(self.directory, "read").touch()
        yield [ComparedRow(number, f"{number}", number, "x" * 100) for number in range(ROWS)]


@dataclass(frozen=True)
class Stored(StoreRows):
    """What the store has of the same rows, all of them different."""

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        yield [ComparedRow(number, f"{number}", -number - 1, "") for number in range(ROWS)]


def tasks_for(directory: Path) -> list[RowsTask]:
    part = Partition(cast("PublishedTable", None), cast("Leaf", None), 0, None, 1)
    return [RowsTask(rows, 1, frozenset({0})) for rows in (ReadOnce(TABLE, part, str(directory)), Stored(TABLE, 0, 1))]


def test_what_is_computed_anew_after_an_executor_died_lacks_no_rows(
    engine: SparkEngine, spark: Spark, tmp_path: Path
) -> None:
    """Else rows of the store would seem not to be in the source any more."""
    found: list[Difference] = []

    def take(differences: Sequence[Difference]) -> None:
        found.extend(differences)
        spark.session().catalog.clearCache()

    with pytest.raises(TableChangedError), engine.run(IN_PIECES, "test") as run:
        run.differences(tasks_for(tmp_path), take)
    assert {difference.copies for difference in found} == {1}


@pytest.fixture
def session(spark: Spark) -> Iterator[SparkSession]:
    """One that does not bring the few rows of tests together in one part."""
    together, session = "spark.sql.adaptive.coalescePartitions.enabled", spark.session()
    session.conf.set(together, "false")
    yield session
    session.conf.unset(together)


@pytest.mark.long
def test_no_part_of_what_is_computed_can_do_without_the_error_of_a_task(session: SparkSession, tmp_path: Path) -> None:
    """When executors die, any of them may be computed anew, and lack rows of a task that fails then."""
    (tmp_path / "read").touch()
    rows = differing_rows(rows_of(session, JOB, tasks_for(tmp_path)))
    found = rows.select(functions.spark_partition_id(), rows["table"] == TABLE.id).distinct().collect()
    with_rows, with_errors = ({part for part, of_table in found if of_table is which} for which in (True, False))
    assert len(with_rows) > 1
    assert with_rows <= with_errors


@pytest.mark.long
def test_where_rows_meet_a_job_can_be_given_up(engine: SparkEngine, tmp_path: Path) -> None:
    stop = threading.Event()
    task = RowsTask(Endless(TABLE, 0, 1, str(tmp_path)), 1, frozenset({0}))

    def give_up() -> None:
        wait_until(lambda: bool(hanging(tmp_path)), "the task to run")
        stop.set()

    impatient = threading.Thread(target=give_up)
    impatient.start()
    with pytest.raises(GivenUpError), engine.run(JOB, "test", stop) as run:
        run.differences([task], lambda _: None)
    impatient.join()
    wait_until(lambda: not hanging(tmp_path), "the task to end")
