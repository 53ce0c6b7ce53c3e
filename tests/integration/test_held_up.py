"""What is held up in the middle of a load: a paused replicator, a locked store, a source that is stopped at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, StopMode
from tests.support.each_once import NOTES, OWNERS, Writer, assert_each_once, snapshot_of_empty_table
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.store_file import store_file, store_tables

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs


LARGE = 40_000
INSERT = (
    f"insert into notes select 'n' || i, (array['a', 'b', 'c'])[i % 3 + 1], i from generate_series(0, {LARGE - 1}) i"
)


def locked(deployment: Deployment) -> bool:
    """Whether a flush is open."""
    with store_file(deployment.directory, wait_ms=0) as db:
        try:
            db.execute("begin immediate; rollback")
        except apsw.BusyError:
            return True
    return False


def test_a_replicator_that_is_paused_within_a_flush_goes_on(
    deploy: Deploy, source_db: SourceDb, launch: Launch
) -> None:
    deployment = snapshot_of_empty_table(deploy(NOTES))
    running = launch("replicate", config_of(deployment, free_port()))
    running.wait_for("following the stream")
    source_db.execute(INSERT)

    def paused_within() -> bool:
        running.pause()
        if locked(deployment):
            return True
        running.resume()
        return False

    wait_until(paused_within, "a pause within a flush")
    assert deployment.op_count_now() == 0
    source_db.execute("insert into notes values ('n40000', 'b', 40000)")
    running.resume()
    assert_each_once(deployment, LARGE + 1)
    assert running.alive


def shows_the_truth(deployment: Deployment) -> bool:
    rows = [row for owner in OWNERS for row in deployment.rows(owner).values()]
    truth = [{"id": r[0], "owner": r[1], "n": r[2]} for r in deployment.source.fetch("select id, owner, n from notes")]
    return sorted(rows, key=str) == sorted(truth, key=str)


@contextmanager
def lock_of(deployment: Deployment) -> Iterator[None]:
    """Nobody else can write to the store."""
    if deployment.storage is None:
        with store_file(deployment.directory) as db:
            db.execute("begin immediate")
            yield
            db.execute("rollback")
        return
    with store_tables(deployment.storage) as conn:
        conn.execute("lock table ops in exclusive mode")
        yield


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_a_store_that_is_locked_under_load_is_waited_for(
    deploy: Deploy, source_db: SourceDb, on_postgres: bool
) -> None:
    deployment = deploy(NOTES, on_postgres=on_postgres)
    source_db.execute("create table notes (id text primary key, owner text not null, n int)")
    deployment.start()
    writer = Writer(source_db)
    writer.start()
    try:
        writer.allow(300)
        wait_until(lambda: deployment.op_count_now() > 20, "the load to arrive")
        with lock_of(deployment):
            seen = deployment.op_count_now()
            wait_until(lambda: writer.written == 300, "the load to be written")
            source_db.execute("update notes set n = -n")
            assert deployment.op_count_now() == seen
        deployment.caught_up()
        assert shows_the_truth(deployment)
    finally:
        writer.end()
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot"]
    deployment.close()
    assert deployment.problems() == []


class Doomed(Writer):
    """Whose server goes."""

    def run(self) -> None:
        with contextlib.suppress(psycopg.OperationalError):
            super().run()


def test_a_source_that_is_stopped_at_once_in_the_middle_of_a_load(
    postgres_with: Callable[..., EmbeddedPostgres], bulk: BulkJobs, tmp_path: Path
) -> None:
    server = postgres_with(synchronous_commit="on", full_page_writes="on")
    source = SourceDb(server, "postgres")
    deployment = snapshot_of_empty_table(Deployment(source, tmp_path / "store", NOTES, bulk)).start()
    try:
        for _ in range(2):
            with psycopg.connect(source.dsn) as open_transaction:
                open_transaction.execute(
                    INSERT.replace("'n'", "'open '")
                )  # it never commits, though much of it is in the log
                writer = Doomed(source)
                writer.start()
                writer.allow(10_000)
                seen = deployment.op_count_now()
                wait_until(lambda seen=seen: deployment.op_count_now() > seen + 40, "the load to arrive")  # type: ignore[misc]
                source.connection.close()
                server.stop(StopMode.IMMEDIATE)
                writer.end()
                open_transaction.close()
            server.start()
            source.connection = psycopg.connect(source.dsn, autocommit=True)
            assert source.fetch("select count(*) > 30 from notes") == [(True,)]
            assert shows_the_truth(deployment)
            source.execute("delete from notes where n > 5; update notes set id = 'before ' || id")
        assert shows_the_truth(deployment)
        assert [record.kind for record in deployment.bulk_records()] == ["snapshot"]
    finally:
        deployment.close()
        source.connection.close()
    assert deployment.problems() == []
