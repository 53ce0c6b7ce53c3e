"""Spark's own process can end at any time, as when the machine runs out of memory."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil
import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext

import headwater.pipeline.spark.session
from headwater.bulk.contract import EngineLostError
from headwater.pipeline.spark.engine import SparkEngine, SparkRun
from headwater.pipeline.spark.session import Spark, launch_jvm
from tests.support.fix_headwater import Deployment
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark


def test_a_spark_that_was_killed_is_started_again_and_that_is_told(
    deploy: Callable[..., Deployment],
    source_db: SourceDb,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headwater.pipeline.spark.session")
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment = deploy(NOTES).start()
    first = SparkContext._gateway.proc.pid  # type: ignore[union-attr]  # where Spark itself keeps it
    jvm = psutil.Process(first)
    jvm.kill()
    source_db.execute("alter table notes add column extra int default 7")
    wait_until(lambda: deployment.health().work == "starting Spark", "the start")
    wait_until(lambda: deployment.rows("x") == {("notes", "1"): {"id": "1", "extra": 7}}, "the comparison")
    assert SparkContext._gateway.proc.pid != first  # type: ignore[union-attr]  # as above
    assert capfd.readouterr().err == "", "what a JVM says goes to the log"
    ended, starting, ready = [
        record.getMessage() for record in caplog.records if record.name == "headwater.pipeline.spark.session"
    ][-3:]
    assert ended.startswith("Spark's JVM has ended")
    assert starting.startswith("starting Spark (local[*]), which takes 5 to 15 seconds")
    assert re.fullmatch(r"Spark is ready after \d+\.\d s", ready)


def test_errors_of_spark_are_errors_in_our_log(spark: Spark, caplog: pytest.LogCaptureFixture) -> None:
    jvm = spark.context()._jvm
    assert jvm is not None
    jvm.org.apache.logging.log4j.LogManager.getLogger("org.example.Thing").error("this went wrong")
    said = ("spark.Thing", logging.ERROR, "this went wrong")
    wait_until(lambda: said in caplog.record_tuples, "the log to have it")


def kill_jvm() -> None:
    process = SparkContext._gateway.proc  # type: ignore[union-attr]  # where Spark itself keeps it
    process.kill()
    process.wait(20)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_a_spark_that_is_killed_as_it_starts_holds_up_no_stream_and_is_started_again(
    deploy: Callable[..., Deployment],
    source_db: SourceDb,
    spark: Spark,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    times: int,
) -> None:
    launched: list[JavaGateway] = []

    def launch_and_kill(conf: SparkConf) -> JavaGateway:
        launched.append(launch_jvm(conf))
        if len(launched) <= times:
            launched[-1].proc.kill()
            launched[-1].proc.wait(20)
        return launched[-1]

    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment = deploy(NOTES).start()
    caplog.set_level(logging.INFO, "headwater.replication")
    caplog.clear()
    kill_jvm()
    monkeypatch.setattr(headwater.pipeline.spark.session, "launch_jvm", launch_and_kill)
    source_db.execute("alter table notes add column extra int default 7")
    wait_until(lambda: deployment.rows("x") == {("notes", "1"): {"id": "1", "extra": 7}}, "the comparison")
    assert len(launched) == times + 1
    assert "Spark's JVM was killed; it is started again; trying again in 1 s" in caplog.text
    assert "following the stream" not in caplog.text, "it was not interrupted"


@dataclass(frozen=True)
class Nothing:
    """A task that any Spark can do."""

    def run(self, job: None, number: int, attempt: str) -> bool:
        return True


@pytest.mark.long
def test_a_spark_with_nothing_to_do_ends_with_its_processes_and_starts_when_there_is_work(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.pipeline.spark.session")
    engine, seconds = SparkEngine(spark), 1.0
    monkeypatch.setattr(spark, "_settings", replace(spark._settings, idle_minutes=seconds / 60))
    with engine.run(None, "test") as run:
        assert run.tasks([Nothing()]) == [True]
        jvm = psutil.Process(SparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # where Spark itself keeps it
        family = [jvm, *jvm.children(recursive=True)]
        time.sleep(2 * seconds)  # nothing tells that nothing happens
        assert run.tasks([Nothing()]) == [True], "it is not idle while somebody uses it"
    wait_until(lambda: not any(each.is_running() for each in family), "the JVM and its workers to end")
    assert "Spark had nothing to do" in caplog.text
    caplog.clear()
    with engine.run(None, "test") as run:
        assert run.tasks([Nothing()]) == [True]
        assert spark.session().range(3).count() == 3
    assert "starting Spark" in caplog.text
    assert "has ended" not in caplog.text, "that is said of a Spark that was killed"


def overtaken(spark: Spark, work: Callable[[SparkRun[None]], object]) -> None:
    """Spark ends in the midst of a job, and another job is the first to notice and to start a new one."""
    with SparkEngine(spark).run(None, "test") as run:
        kill_jvm()
        spark.context()
        work(run)


@pytest.mark.long
def test_a_job_learns_that_its_spark_is_another_ones_by_now(spark: Spark) -> None:
    with pytest.raises(EngineLostError, match="Spark's JVM has ended"):
        overtaken(spark, lambda run: run.tasks([Nothing()]))
    with SparkEngine(spark).run(None, "test") as run:
        assert run.tasks([Nothing()] * 3) == [True] * 3


SHUFFLE = """
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.session import Spark
spark = Spark(SparkSettings())
with spark.used() as context:
    pairs = context.parallelize(range(1000), 2).map(lambda number: (number % 2, "x"))
    print(sorted(pairs.groupByKey().mapValues(len).collect()))
spark.stop()
"""


def run_as(*command: str) -> subprocess.CompletedProcess[str]:
    """A shuffle on Spark, in a process that is begun so. Skips the test where nobody may begin one."""
    try:
        subprocess.run([*command, sys.executable, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to run {command[0]}: {error}")
    return subprocess.run([*command, sys.executable, "-c", SHUFFLE], capture_output=True, text=True, check=False)


def test_no_program_has_to_run_from_tmp() -> None:
    noexec = 'mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp && exec "$@"'
    done = run_as("unshare", "--mount", "sh", "-c", noexec, "sh")
    assert done.stdout == "[(0, 500), (1, 500)]\n", done.stderr


def test_a_user_without_a_name_is_told_that_spark_needs_one() -> None:
    rights = "+dac_override,+dac_read_search"  # to reach the modules, wherever they are
    done = run_as("setpriv", "--reuid=1000650000", f"--inh-caps={rights}", f"--ambient-caps={rights}")
    assert "the user that runs Headwater has no name (uid 1000650000); add it to /etc/passwd" in done.stderr
