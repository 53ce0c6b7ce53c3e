"""Memory follows the bytes of rows, not their number: large rows are taken in a few at a time."""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest

from headwater.source import stream
from tests.support.changed_source import unheard
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.memory import forget_peak, peak
from tests.support.row_truth import device_rows, truth
from tests.support.store_file import store_file
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")

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
def test_gigabyte_transaction_in_600_megabytes(deploy: Deploy, source_db: SourceDb, launch: Launch, rows: int) -> None:
    # Compressed at rest, which is quick; the stream brings each value whole
    source_db.execute("create table notes (id text primary key, body text, n int)")
    deployment = deploy(NOTES, on_postgres=False).start()
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
def test_five_gigabytes_of_large_rows(deploy: Deploy, source_db: SourceDb) -> None:
    rows, width, rounds = 70, 15 * MB - 100, 5
    create(source_db)
    deployment = deploy(NOTES.replace("*", "id, n")).start()
    for _ in range(rounds):
        took = grown(
            deployment,
            "begin; truncate notes; insert into notes"
            f" select i::text, i || repeat('x', {width}), i from generate_series(1, {rows}) i; commit",
            600,
        )
        assert took < ALLOWED, f"{took // MB} MB"
    assert deployment.op_count() >= rounds * rows


def now() -> int:
    """Bytes that are resident, with nothing in the heap that the allocator could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return forget_peak()


@pytest.mark.parametrize(
    ("what", "copies"),
    [
        ("select pg_logical_emit_message(true, 'other', repeat('xyz\n', {0} / 4))", 2),
        pytest.param(
            "select pg_logical_emit_message(false, 'other', repeat('xyz\n', {0} / 4))", 2, marks=pytest.mark.long
        ),
        pytest.param("insert into notes values ('large', repeat(E'xyz\n', {0} / 4), 1)", 3, marks=pytest.mark.long),
    ],
    ids=["message", "message of no transaction", "row"],
)
def test_over_budget_rows_are_held_briefly(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, what: str, copies: int
) -> None:
    """Postgres sends no message and no row in parts. What libpq holds and what it hands over make two."""
    monkeypatch.setattr(stream, "_KEPT_SECONDS", 0.0)
    size = 128 * MB
    create(source_db)
    deployment = deploy(NOTES).start()
    fill(source_db, 10, 1 * MB)
    deployment.caught_up()
    before = now()
    took = grown(deployment, f"{what.format(size)}; insert into notes values ('after', '', 1)")
    assert took < copies * size + 60 * MB, f"{took // MB} MB"
    wait_until(lambda: now() - before < 60 * MB, "the memory to be given back")
    ids = {row["id"] for row in deployment.rows("u").values()}
    assert "after" in ids
    assert "large" not in ids


@pytest.mark.long
def test_bulk_work_holds_large_row_briefly(deploy: Deploy, source_db: SourceDb) -> None:
    size = 64 * MB
    create(source_db)
    fill(source_db, 10, 1 * MB)
    source_db.execute(f"insert into notes values ('large', repeat(E'xyz\n', {size} / 4), 1)")
    before, deployment = now(), deploy(NOTES).start()
    for kind in ("snapshot", "resync", "audit"):
        if kind != "snapshot":
            assert deployment.ask(kind)["state"] == "done"
        assert (took := peak() - before) < 5 * size + 60 * MB, f"{kind}: {took // MB} MB"
        before = now()
    assert len(deployment.rows("u")) == 10


@pytest.mark.long
def test_untoasted_values(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    fill(source_db, 1_500, 200_000)
    deployment = deploy(NOTES).start()
    took = grown(deployment, "update notes set n = n + 1")
    assert took < ALLOWED, f"{took // MB} MB"


@pytest.mark.parametrize(
    ("identity", "on_postgres"),
    [("default", False), ("full", False), ("default", True), pytest.param("full", True, marks=pytest.mark.long)],
)
def test_single_row_pieces_give_the_same(
    deploy: Deploy, source_db: SourceDb, identity: str, *, on_postgres: bool
) -> None:
    create(source_db)
    source_db.execute(f"alter table notes replica identity {identity}")
    fill(source_db, 22, 10_000)
    deployment = deploy(NOTES, on_postgres=on_postgres, memory_bytes=4).start()
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
    deployment.redeploy(NOTES.replace("*", "id, body, n, n AS more"))
    assert {row["more"] for row in deployment.rows("u").values()} == {
        n for (n,) in source_db.fetch("select n from notes")
    }
    assert deployment.ask("audit")["differences"] == {}


@pytest.mark.long
def test_large_row_in_many_buckets(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    source_db.execute("alter table notes add column readers jsonb")
    query = "SELECT id, body FROM notes WHERE auth.user_id() IN notes.readers"
    deployment = deploy(NOTES.replace("SELECT * FROM notes", query)).start()
    readers = "(select jsonb_agg(i::text) from generate_series(1, 100) i)"
    took = grown(deployment, f"insert into notes values ('1', repeat('x', {5 * MB}), 1, {readers})")
    assert took < ALLOWED, f"{took // MB} MB"
    assert [row["id"] for row in deployment.rows("7").values()] == ["1"]
