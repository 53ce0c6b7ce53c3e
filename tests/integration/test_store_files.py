"""Files of an embedded store that are removed, replaced or closed to us under a running service: it is told, nothing
more is confirmed to the source, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.storage.contract.store import Lease, StoreError, StoreGoneError
from headwater.storage.sqlite.flush import SqliteFlush
from headwater.storage.sqlite.writer import SqliteWriter
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.row_truth import device_rows, truth
from tests.support.store_file import store_file
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until


@pytest.fixture
def running(deploy: Deploy, source_db: SourceDb) -> Deployment:
    """A replicator at work on an embedded store."""
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes select i::text, 'body ' || i from generate_series(1, 300) i")
    deployment = deploy(NOTES, on_postgres=False).start()
    deployment.caught_up()
    return deployment


def remove_file(directory: Path) -> None:
    (directory / "store.db").unlink()


def remove_log(directory: Path) -> None:
    (directory / "store.db-wal").unlink()


def remove_index(directory: Path) -> None:
    (directory / "store.db-shm").unlink()


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def replace_file(directory: Path) -> None:
    shutil.copyfile(directory / "store.db", directory / "copy")
    (directory / "copy").rename(directory / "store.db")


def replace_directory(directory: Path) -> None:
    shutil.copytree(directory, directory.with_name("copy"), ignore=shutil.ignore_patterns("*.sock"))
    directory.rename(directory.with_name("old"))
    directory.with_name("copy").rename(directory)


def confirmed(source: SourceDb) -> Lsn:
    """Up to where the source was told that all is kept."""
    query = "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()"
    return parse_lsn(source.fetch(query)[0][0])


def written(source: SourceDb) -> Lsn:
    """Before which all is that was committed."""
    return parse_lsn(source.fetch("select pg_current_wal_insert_lsn()::text")[0][0])


def forget_leases(directory: Path) -> None:
    """That of a process which could not give it back is known to be gone at once; that of a test is not."""
    if (directory / "store.db").exists():
        with store_file(directory) as db:
            db.execute("update leases set expires_at = 0")


@pytest.mark.parametrize(
    "harm", [remove_file, remove_log, remove_index, remove_directory, replace_file, replace_directory]
)
def test_removed_store_confirms_nothing(
    running: Deployment, source_db: SourceDb, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    running.reader.newest()
    harm(running.directory)
    before = written(source_db)
    source_db.execute("insert into notes values ('new', 'x'); update notes set body = 'y' where id = '7'")
    source_db.execute("delete from notes where id = '8'")
    wait_until(lambda: caplog.text.count("ERROR    headwater.replication.replicator") > 1, "a second attempt", 20)
    assert confirmed(source_db) <= before
    assert "[HW_4010] a file of the store was re" in caplog.text
    assert "put the original back, or restart Headwater" in caplog.text
    with pytest.raises(StoreGoneError):
        running.reader.newest()
    running.close()
    assert confirmed(source_db) <= before
    forget_leases(running.directory)
    running.start()
    assert device_rows(running) == truth(source_db, "notes")


def test_restored_store_continues(running: Deployment, source_db: SourceDb, caplog: pytest.LogCaptureFixture) -> None:
    away = running.directory.with_name("away")
    running.directory.rename(away)
    source_db.execute("insert into notes values ('new', 'x')")
    wait_until(lambda: "[HW_4010]" in caplog.text, "the cause to be named", 20)
    away.rename(running.directory)
    assert device_rows(running) == truth(source_db, "notes")
    assert running.kinds() == ["snapshot"]


Freeze = Callable[[Path], None]


@pytest.fixture
def freeze() -> Iterator[Freeze]:
    """Let nobody write to a file, or make one in a directory, not even root. Thawed with `thaw` or the test."""
    with ExitStack() as stack:

        def make(path: Path) -> None:
            try:
                subprocess.run(["chattr", "+i", path], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("needs chattr, and the right to make a file immutable")
            stack.callback(thaw, path)

        yield make


def thaw(path: Path) -> None:
    if path.exists():
        subprocess.run(["chattr", "-i", path], check=True)


@pytest.mark.parametrize("frozen", ["store.db", "."])
def test_open_files_outlive_permissions(running: Deployment, source_db: SourceDb, freeze: Freeze, frozen: str) -> None:
    running.reader.newest()
    freeze(running.directory / frozen)
    source_db.execute("insert into notes values ('new', 'x'); delete from notes where id = '8'")
    assert device_rows(running) == truth(source_db, "notes")
    running.close()
    thaw(running.directory / frozen)
    running.start()
    assert running.kinds() == ["snapshot"]
    assert device_rows(running) == truth(source_db, "notes")


def test_unwritable_store_loses_nothing(
    running: Deployment, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read_only, begin, discard = [True], SqliteWriter.begin, SqliteWriter.discard_staged

    def begin_to_read(store: SqliteWriter, lease: Lease) -> SqliteFlush:
        store._db.execute(f"pragma query_only = {read_only[0]}")
        return begin(store, lease)

    def discard_all_the_same(store: SqliteWriter, lease: Lease) -> None:
        store._db.execute("pragma query_only = off")
        discard(store, lease)

    before = written(source_db)
    monkeypatch.setattr(SqliteWriter, "begin", begin_to_read)
    monkeypatch.setattr(SqliteWriter, "discard_staged", discard_all_the_same)
    source_db.execute("insert into notes values ('new', 'x'); delete from notes where id = '8'")
    wait_until(lambda: caplog.text.count("[HW_4001] the store is not writable") > 1, "a second attempt", 20)
    assert confirmed(source_db) <= before
    read_only[0] = False
    assert device_rows(running) == truth(source_db, "notes")
    assert running.kinds() == ["snapshot"]


@pytest.mark.parametrize("frozen", ["store.db", "."])
def test_unwritable_store_at_start_is_named(
    running: Deployment, source_db: SourceDb, freeze: Freeze, frozen: str
) -> None:
    running.close()
    path = running.directory / frozen
    source_db.execute("insert into notes values ('new', 'x'); delete from notes where id = '8'")
    freeze(path)
    with pytest.raises(
        StoreError, match=r"\[HW_4001\] the store (is not writable|can't be opened) \(.*store.db\); check"
    ):
        running.start()
    running.close()
    thaw(path)
    running.start()
    assert device_rows(running) == truth(source_db, "notes")
    assert running.kinds() == ["snapshot"]
