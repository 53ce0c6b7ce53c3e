"""What is told of bulk work while it runs is true: how many rows there are, what is waited for, what is being done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Deploy = Callable[..., Deployment]

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""
ROWS = 2_525


@pytest.fixture
def world(source_db: SourceDb) -> SourceDb:
    """A table that the planner knows."""
    source_db.execute("create table notes (id int primary key, nr int not null, body text)")
    source_db.execute(f"insert into notes select i, i, 'x' from generate_series(1, {ROWS}) i; analyze notes")
    source_db.execute("create unique index nr on notes (nr)")
    return source_db


def told(deployment: Deployment, what: str) -> set[tuple[int, int]]:
    """Rows done at the end, and rows that were expected, as jobs of a kind were told of."""
    reports = [progress for progress in deployment.snapshots if progress.what == what]
    assert reports, f"nothing was told of a {what}"
    return {(max(report.rows for report in reports), report.rows_expected) for report in reports}


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_as_many_rows_are_announced_as_there_are(deploy: Deploy, world: SourceDb, on_postgres: bool) -> None:
    deployment = deploy(CONFIG, on_postgres=on_postgres).start()
    assert told(deployment, "snapshot") == {(ROWS, ROWS)}
    assert deployment.ask("resync")["state"] == "done"
    assert told(deployment, "comparison") == {(2 * ROWS, 2 * ROWS)}  # of either side
    deployment.redeploy(CONFIG.replace("*", "id"))
    assert told(deployment, "reprocess") == {(ROWS, ROWS)}
    world.execute("alter table notes replica identity using index nr")
    wait_until(lambda: any(p.what == "re-key" and p.tasks for p in deployment.snapshots), "the re-key")
    assert told(deployment, "re-key") == {(ROWS, ROWS)}


def test_rows_are_told_by_the_size_of_a_table_that_grew_since_the_planner_looked(
    deploy: Deploy, world: SourceDb
) -> None:
    world.execute(f"insert into notes select i, i, 'x' from generate_series({ROWS + 1}, {4 * ROWS}) i")
    ((rows, expected),) = told(deploy(CONFIG).start(), "snapshot")
    assert rows == 4 * ROWS
    assert 3 * ROWS < expected < 5 * ROWS
