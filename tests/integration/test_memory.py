"""Memory follows the bytes of rows, not their number: large rows are taken in a few at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.fix_headwater import Deployment, wait_until
from tests.support.memory import forget_peak, peak

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Deploy = Callable[..., Deployment]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")

CONFIG = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: "SELECT * FROM notes"}
"""
MB = 1 << 20
ALLOWED = 450 * MB
"""Bytes beside what the tests take already: 128 MB are the store's page cache."""


def create(source: SourceDb) -> None:
    source.execute("create table notes (id text primary key, body text, n int)")
    source.execute("alter table notes alter column body set storage external")


def fill(source: SourceDb, rows: int, width: int) -> None:
    source.execute(f"insert into notes select i::text, i || repeat('x', {width}), i from generate_series(1, {rows}) i")


def grown(deployment: Deployment, sql: str, seconds: float = 120) -> int:
    """By how many bytes the memory grows while a transaction is taken in."""
    ops, before = deployment.op_count(), forget_peak()
    deployment.source.execute(sql)
    wait_until(lambda: deployment.op_count_now() > ops, "the transaction to arrive", seconds)
    deployment.caught_up()
    return peak() - before


@pytest.mark.parametrize(
    ("rows", "width"),
    [(80, 5 * MB), pytest.param(340, 15 * MB - 100, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_rows_of_many_bytes_in_one_transaction(deploy: Deploy, source_db: SourceDb, rows: int, width: int) -> None:
    create(source_db)
    deployment = deploy(CONFIG).start()
    took = grown(
        deployment,
        f"insert into notes select i::text, i || repeat('x', {width}), i from generate_series(1, {rows}) i",
        600,
    )
    assert took < ALLOWED, f"{took // MB} MB"


def test_values_that_an_update_leaves_alone(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    fill(source_db, 1_500, 200_000)
    deployment = deploy(CONFIG).start()
    took = grown(deployment, "update notes set n = n + 1")
    assert took < ALLOWED, f"{took // MB} MB"
