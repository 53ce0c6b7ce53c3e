"""Rows whose values are right and which are not what the rules make of them now: none of them stays on devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import headwater.pipeline.compare
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.local_bulk import patches_tasks

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items WHERE owner = auth.user_id()
"""


def fill(source: SourceDb, rows: int, identity: str = "default") -> None:
    source.execute("create table items (id int primary key, owner text, body text, gone text)")
    source.execute(f"alter table items replica identity {identity}")
    source.execute(f"insert into items select i, 'a', 'body ' || i, 'gone ' || i from generate_series(1, {rows}) i")


def stale(deployment: Deployment) -> int:
    """How many rows of a device have what is not in the source any more."""
    return sum("gone" in row for row in deployment.rows("a").values())


@pytest.fixture
def with_stale_rows(deploy: Deploy, source_db: SourceDb) -> Callable[..., Deployment]:
    """A deployment whose comparison took none of the rows for wrong."""

    def make(rows: int) -> Deployment:
        fill(source_db, rows)
        deployment = deploy(CONFIG).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(headwater.pipeline.compare, "_in_right_buckets", lambda *_: True)
            source_db.execute("alter table items drop column gone")
            wait_until(lambda: settled(deployment), "the comparison to end")
        assert stale(deployment) == rows
        return deployment

    return make


@pytest.mark.parametrize(
    ("identity", "rows"),
    [
        ("default", 20_000),
        *(pytest.param(identity, 20_000, marks=pytest.mark.long) for identity in ("full", "nothing")),
        *(
            pytest.param(identity, 1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])
            for identity in ("default", "full", "nothing")
        ),
    ],
)
def test_of_a_dropped_column_no_row_keeps_its_value(
    deploy: Deploy, source_db: SourceDb, identity: str, rows: int
) -> None:
    fill(source_db, rows, identity)
    deployment = deploy(CONFIG)
    deployment.patience = 600
    deployment.start()
    assert stale(deployment) == rows
    source_db.execute("alter table items drop column gone")
    wait_until(lambda: settled(deployment), "the comparison to end", seconds=900)
    assert stale(deployment) == 0
    assert len(deployment.rows("a")) == rows
    deployment.close()
    assert deployment.problems() == []


@patches_tasks
def test_a_resync_finds_rows_that_only_the_rules_tell_from_what_they_should_be(
    with_stale_rows: Callable[..., Deployment],
) -> None:
    deployment = with_stale_rows(1000)
    assert deployment.ask("audit")["differences"] == {"public.items": 1000}
    assert deployment.ask("resync")["differences"] == {"public.items": 1000}
    assert stale(deployment) == 0
    assert deployment.ask("resync")["differences"] == {}
