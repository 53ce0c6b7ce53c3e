"""The scaled set-up as processes: Spark as a cluster, a standby, two endpoints, while parts of it are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.embedded.postgres import PostgresBinaries
from tests.scaled.machines import Machines
from tests.scaled.run import Run
from tests.support.command import environment
from tests.support.fix_postgres import FAST

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def machines(tmp_path: Path, postgres_binaries: PostgresBinaries) -> Iterator[Machines]:
    with Machines(tmp_path / "machines", postgres_binaries, FAST) as machines:
        machines.start_spark()
        yield machines


def test_nothing_is_lost_when_a_worker_an_endpoint_and_the_replicator_are_killed(machines: Machines) -> None:
    run = Run(machines, users=2, rows=3000, writers=1, pause=0.1)
    try:
        run.begin()
        run.resync_with_a_worker_killed()
        run.endpoint_killed()
        run.rule_edit_with_the_replicator_killed()
        run.end()
    finally:
        run.close()
    assert run.killed == {"worker": 1, "endpoint": 1, "replicator": 1}


def driven(machines: Machines, python: Path) -> str:
    """What a driver says whose executors are to run this Python."""
    module = "tests.support.cluster_driver"
    done = subprocess.run(
        [sys.executable, "-m", module, machines.master, str(python)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=600,
    )
    return done.stdout.strip()


def test_executors_without_headwater_are_told_and_an_application_that_was_ended_is_begun_again(
    machines: Machines, tmp_path: Path
) -> None:
    bare = Path(sys.base_prefix, "bin", "python3")
    assert driven(machines, bare).startswith(
        "[HW_5107] the executors can't run tasks: ModuleNotFoundError: No module named 'headwater'; give the machines"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(sys.prefix)  # another path than ours
    assert driven(machines, elsewhere / "bin" / "python") == "done twice"
