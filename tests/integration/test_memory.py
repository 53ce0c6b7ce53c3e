"""Memory follows the bytes of rows, not their number: large rows are taken in a few at a time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.changed_source import unheard
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.memory import forget_peak, peak
from tests.support.row_truth import device_rows, truth
from tests.support.store_file import store_file

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")

CONFIG = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: "SELECT * FROM notes"}
"""
MB = 1 << 20
ALLOWED = 350 * MB
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


@pytest.mark.timeout(300)
@pytest.mark.long
@pytest.mark.parametrize("rows", [130, 200])
def test_a_transaction_of_up_to_a_gigabyte_passes_a_process_of_600_megabytes(
    deploy: Deploy, source_db: SourceDb, launch: Launch, rows: int
) -> None:
    # Compressed at rest, which is quick; the stream brings each value whole
    source_db.execute("create table notes (id text primary key, body text, n int)")
    deployment = deploy(CONFIG, on_postgres=False).start()
    deployment.stop()
    running = launch("replicate", config_of(deployment, free_port()))
    running.wait_for("following the stream")
    fill(source_db, rows, 5 * MB)
    wait_until(lambda: deployment.op_count_now() > rows, "the transaction to arrive")
    took = peak(running.process.pid)
    assert took < 600 * MB, f"{took // MB} MB"
    with store_file(deployment.directory) as db:
        whole = db.execute("select count(*) from ops where octet_length(line) > ?", (5 * MB,)).fetchall()
    assert whole == [(rows,)]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_five_gigabytes_of_rows_as_large_as_may_be(deploy: Deploy, source_db: SourceDb) -> None:
    rows, width, rounds = 70, 15 * MB - 100, 5
    create(source_db)
    deployment = deploy(CONFIG.replace("*", "id, n")).start()
    for _ in range(rounds):
        took = grown(
            deployment,
            "begin; truncate notes; insert into notes"
            f" select i::text, i || repeat('x', {width}), i from generate_series(1, {rows}) i; commit",
            600,
        )
        assert took < ALLOWED, f"{took // MB} MB"
    assert deployment.op_count() >= rounds * rows


@pytest.mark.long
def test_values_that_an_update_leaves_alone(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    fill(source_db, 1_500, 200_000)
    deployment = deploy(CONFIG).start()
    took = grown(deployment, "update notes set n = n + 1")
    assert took < ALLOWED, f"{took // MB} MB"


@pytest.mark.parametrize(
    ("identity", "on_postgres"),
    [("default", False), ("full", False), ("default", True), pytest.param("full", True, marks=pytest.mark.long)],
)
def test_pieces_of_one_row_each_give_the_same(
    deploy: Deploy, source_db: SourceDb, identity: str, *, on_postgres: bool
) -> None:
    create(source_db)
    source_db.execute(f"alter table notes replica identity {identity}")
    fill(source_db, 22, 10_000)
    deployment = deploy(CONFIG, on_postgres=on_postgres)
    deployment.batch_bytes = 4
    deployment.start()
    source_db.execute(
        "begin; update notes set n = n + 1; update notes set id = 'moved ' || id where n % 3 = 0;"
        " insert into notes select id || ' again', body, n from notes where n % 5 = 0;"
        " update notes set id = 'swapped' where id = '1'; update notes set id = '1' where id = '4';"
        " update notes set n = -n, id = '4' where id = 'swapped'; delete from notes where n % 7 = 0; commit"
    )
    assert device_rows(deployment) == truth(source_db, "notes")
    with unheard(deployment):
        source_db.execute("update notes set n = n + 100 where n % 2 = 0; delete from notes where n % 11 = 0")
        source_db.execute("insert into notes select 'unheard ' || i, 'x', i from generate_series(1, 20) i")
    assert deployment.ask("resync")["state"] == "done"
    assert device_rows(deployment) == truth(source_db, "notes")
    deployment.redeploy(CONFIG.replace("*", "id, body, n, n AS more"))
    assert {row["more"] for row in deployment.rows("u").values()} == {
        n for (n,) in source_db.fetch("select n from notes")
    }
    assert deployment.ask("audit")["differences"] == {}
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.long
def test_a_large_row_in_many_buckets(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    source_db.execute("alter table notes add column readers jsonb")
    query = "SELECT id, body FROM notes WHERE auth.user_id() IN notes.readers"
    deployment = deploy(CONFIG.replace("SELECT * FROM notes", query)).start()
    readers = "(select jsonb_agg(i::text) from generate_series(1, 100) i)"
    took = grown(deployment, f"insert into notes values ('1', repeat('x', {5 * MB}), 1, {readers})")
    assert took < ALLOWED, f"{took // MB} MB"
    assert [row["id"] for row in deployment.rows("7").values()] == ["1"]
