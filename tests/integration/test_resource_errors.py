"""What the machine lacks while a transaction is taken in is no fault of the transaction: it is told, waited out, and
nothing is left out for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import psycopg
import pytest

from headwater.decode.wire import DecodeError
from headwater.oplog.transform import Bucket, DraftOp
from headwater.replication.stream.failed import FailedTransactions
from headwater.replication.stream.fold import Fold
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.versions import VersionState
from headwater.storage.postgres.connection import postgres_errors
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.parts import PartWriter
from headwater.storage.sqlite.connection import sqlite_errors
from tests.support.changed_source import unheard
from tests.support.fix_headwater import HASTY, Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import patches_tasks
from tests.support.row_truth import device_rows, truth
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

MARK = "fails for a while"
ADDRESS = PostgresAddress("host=127.0.0.1", "store", "the store")


def system(code: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(code, os.strerror(code), "/a/file")

    return fail


def raising(error: type[Exception], *words: str) -> Callable[[], None]:
    def fail() -> None:
        raise error(*words)

    return fail


def no_memory_to_decode() -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise DecodeError("a message can't be read") from error


def of_sqlite(error: type[apsw.Error]) -> Callable[[], None]:
    def fail() -> None:
        with sqlite_errors(Path("store.db")):
            raise error("SQLite's words")

    return fail


def of_postgres(error: type[psycopg.Error]) -> Callable[[], None]:
    def fail() -> None:
        with postgres_errors(ADDRESS):
            raise error("Postgres' words")

    return fail


FAULTS = {
    "disk full": (system(errno.ENOSPC), "[HW_1001] the machine refuses: No space left on device (/a/file); free space"),
    "disk broken": (system(errno.EIO), "[HW_1001] the machine refuses: Input/output error (/a/file); see the state of"),
    "files": (system(errno.EMFILE), "[HW_1001] the machine refuses: Too many open files (/a/file); raise the limit of"),
    "file gone": (system(errno.ENOENT), "[HW_1001] the machine refuses: No such file or directory (/a/file); look for"),
    "another": (system(errno.ENODEV), "[HW_1001] the machine refuses: No such device (/a/file); it is tried again"),
    "memory": (raising(MemoryError), "[HW_1001] there is not enough memory; give the process more memory; it is tried"),
    "memory, hidden": (no_memory_to_decode, "[HW_1001] there is not enough memory"),
    "store full": (of_sqlite(apsw.FullError), "[HW_4001] the disk is full (store.db); free space on it"),
    "store broken": (of_sqlite(apsw.IOError), "[HW_4001] the disk fails (SQLITE_IOERR) (store.db); check the disk"),
    "store read-only": (of_sqlite(apsw.ReadOnlyError), "[HW_4001] the store is not writable (store.db); check owner"),
    "store damaged": (
        of_sqlite(apsw.CorruptError),
        "[HW_4001] the file is damaged, or not a SQLite database (store.db)",
    ),
    "store closed": (of_sqlite(apsw.CantOpenError), "[HW_4001] the store can't be opened (store.db); check that the"),
    "store's memory": (of_sqlite(apsw.NoMemError), "[HW_4001] there is not enough memory for the store (store.db)"),
    "store away": (of_postgres(psycopg.OperationalError), "[HW_4008] the store's database cannot be reached"),
    "its disk full": (of_postgres(psycopg.errors.DiskFull), "[HW_4001] the disk of the store's database is full"),
}
OFTEN = ("disk full", "memory, hidden", "store broken", "store away")


@dataclass
class Ailing:
    """Fails on a mark in a row until it has done so a number of times; long enough for a transaction to be put on
    record, were it taken for poison."""

    fail: Callable[[], None]
    times: int = 2
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.times

    def take(self) -> None:
        if self.left:
            self.left -= 1
            self.fail()


@pytest.mark.parametrize(
    "fault", [*OFTEN, *(pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS if fault not in OFTEN)]
)
def test_transaction_survives_resource_error(
    deploy: Deploy,
    source_db: SourceDb,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail, told = FAULTS[fault]
    ailing, apply = Ailing(fail), Fold.apply

    def apply_or_fail(fold: Fold, changes: Sequence[tuple[object, object]]) -> None:
        if any(MARK in str(getattr(change, "new", "")) for _, change in changes):
            ailing.take()
        apply(fold, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(Fold, "apply", apply_or_fail)
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES).start()
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    source_db.execute("insert into notes values ('2', 'after')")
    wait_until(lambda: device_rows(deployment) == truth(source_db, "notes"), "all rows")
    assert ailing.left == 0
    assert caplog.text.count(told) == ailing.times
    assert "HW_5005" not in caplog.text
    with deployment.store() as store:
        assert FailedTransactions(deployment.settings, store).read() == []
    assert deployment.kinds() == ["snapshot"], "nothing was compared"


def test_comparison_survives_resource_error(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows whose ops could not be written are not stored either: the next comparison would find nothing to repair."""
    ailing, append = Ailing(raising(MemoryError), times=1), Flush.append

    def append_or_fail(flush: Flush, ops: Sequence[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        if any("missed" in op.body for op in ops):
            ailing.take()
        append(flush, ops, buckets)

    monkeypatch.setattr(Flush, "append", append_or_fail)
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes values ('1', 'one'), ('2', 'two')")
    deployment = deploy(NOTES, intervals=replace(HASTY, retry=0.05)).start()
    with unheard(deployment):
        source_db.execute("update notes set body = 'missed' where id = '1'")
    assert deployment.ask("resync")["state"] == "done"
    assert ailing.left == 0
    assert "[HW_1001] there is not enough memory" in caplog.text
    assert device_rows(deployment) == truth(source_db, "notes")


@patches_tasks
@pytest.mark.parametrize("broken", [system(errno.EIO), raising(MemoryError)], ids=["disk", "memory"])
def test_version_survives_resource_error_of_task(
    deploy: Deploy,
    source_db: SourceDb,
    broken: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source_db.execute("create table notes (id text primary key, body text); insert into notes values ('1', 'one')")
    deployment = deploy(NOTES, on_postgres=False, intervals=replace(HASTY, retry=0.05)).start()
    ailing, finish = Ailing(broken, times=25), PartWriter.finish  # three to an attempt

    def finish_or_fail(part: PartWriter) -> StagedPart:
        ailing.take()
        return finish(part)

    monkeypatch.setattr(PartWriter, "finish", finish_or_fail)
    version = deployment.redeploy(NOTES.replace("*", "id, body, 'new' AS more"))
    assert version.state is VersionState.ACTIVE
    assert ailing.left == 0
    assert "[HW_1001]" in caplog.text
    assert [row["more"] for row in deployment.rows("u").values()] == ["new"]
