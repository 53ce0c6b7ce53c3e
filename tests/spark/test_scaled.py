"""The scaled set-up as processes: Spark as a cluster, a standby, two endpoints, while parts of it are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.embedded.postgres import PostgresBinaries
from tests.scaled.machines import WORKERS, Machines
from tests.scaled.run import Run
from tests.support.command import environment
from tests.support.fix_postgres import FAST
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def machines(tmp_path: Path, postgres_binaries: PostgresBinaries) -> Iterator[Machines]:
    with Machines(tmp_path / "machines", postgres_binaries, FAST) as machines:
        machines.start_spark()
        yield machines


def test_nothing_is_lost_when_a_worker_an_endpoint_the_replicator_and_the_store_die(machines: Machines) -> None:
    run = Run(machines, users=2, rows=3000, writers=1, pause=0.1)
    try:
        run.begin()
        run.resync_with_a_worker_killed()
        run.endpoint_killed()
        run.rule_edit_with_the_replicator_killed()
        run.store_crashed()
        run.end()
    finally:
        run.close()
    assert run.killed == {"worker": 1, "endpoint": 1, "replicator": 1}


@pytest.fixture
def driver(machines: Machines) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts drivers, whose output says how their tasks ended."""
    started: list[subprocess.Popen[str]] = []

    def start(python: Path, *options: str) -> subprocess.Popen[str]:
        arguments = ["-m", "tests.spark.cluster_driver", machines.master, str(python), *options]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, env=environment(), text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_executors_without_headwater_are_told_and_an_application_that_was_ended_is_begun_again(
    driver: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    said, _ = driver(Path(sys.base_prefix, "bin", "python3")).communicate(timeout=600)
    assert said.startswith(
        "[HW_5107] the executors can't run tasks: ModuleNotFoundError: No module named 'headwater'; give the machines"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(sys.prefix)  # another path than ours
    said, _ = driver(elsewhere / "bin" / "python").communicate(timeout=600)
    assert said.split() == ["done", "done"]


def test_an_application_that_a_new_master_does_not_know_is_begun_again(
    machines: Machines, driver: Callable[..., subprocess.Popen[str]]
) -> None:
    """Else it would wait for executors for ever, and say nothing."""
    process = driver(Path(sys.executable), "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    machines.kill("master")
    machines.start_master(forgetful=True)
    for name in WORKERS:
        worker = machines.running(name)
        wait_until(lambda worker=worker: "finished with state KILLED" in worker.output, name, 600)  # type: ignore[misc]
    said, _ = process.communicate("go on\n", timeout=600)
    assert said.startswith("[HW_5108] the cluster gave no executor for 60 s")
    assert said.endswith("done\n")
