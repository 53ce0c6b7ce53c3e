"""The replicator's side of the embedded store."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.storage.contract import (
    BulkRecord,
    Checkpoint,
    Lease,
    SourceState,
    StagedPart,
    StagedTable,
    StoredConfig,
    StoredTable,
    StoreError,
)
from headwater.storage.sqlite import bulk, tables
from headwater.storage.sqlite import lease as leases
from headwater.storage.sqlite.connection import immediate, open_writer, sqlite_errors
from headwater.storage.sqlite.flush import SqliteFlush, read_checkpoint
from headwater.storage.sqlite.reader import SqliteReader
from headwater.storage.sqlite.wake import Waker

FORMAT = 1

_EPOCH = 1_735_689_600  # 2025-01-01, in seconds since 1970
_OPS_A_SECOND = 1 << 20


def op_floor(now: float) -> int:
    """The lowest op id that a life of the store beginning `now` may give out (seconds since 1970).

    Ids of an earlier life are below it unless that life wrote more than a million ops a second for all its time, so
    a client that is ahead of a restored or rebuilt store still gets everything. Stays below 2^53 until 2297.
    """
    return int((now - _EPOCH) * _OPS_A_SECOND)


class SqliteStore:
    """See `storage.contract.StoreWriter`. `directory` is made when it does not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "store.db"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store's directory can't be made: {error.strerror}", str(directory)) from error
        self._db = open_writer(self._path)
        self._lease_db = open_writer(self._path)
        self._lease_lock = threading.Lock()
        self._waker = Waker(directory)
        self._known_buckets: set[int] = set()
        with sqlite_errors(self._path):
            self._create()

    @staticmethod
    def open_reader(directory: Path) -> SqliteReader:
        """The endpoint's side. Makes an empty store when there is none, so that processes may start in any order."""
        SqliteStore(directory).close()
        return SqliteReader(directory)

    def _create(self) -> None:
        schema = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
        with immediate(self._db):
            self._db.execute(schema)
            self._db.execute("insert or ignore into meta values ('format', ?)", (FORMAT,))
            self._db.execute("insert or ignore into meta values ('salt', ?)", (secrets.token_bytes(16),))
            self._db.execute("insert or ignore into state (id, next_op) values (1, ?)", (op_floor(time.time()),))
        found = self._db.execute("select value from meta where key = 'format'").fetchall()[0][0]
        if found != FORMAT:
            raise StoreError(
                f"the store has format {found}, this version knows {FORMAT}",
                str(self._path),
                "use the version of headwater that wrote it, or move it away to build a new one",
            )

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        with self._lease_lock, sqlite_errors(self._path):
            lease = leases.acquire(self._lease_db, name, owner, ttl)
            # A file that was copied back from a backup continues above whatever it had given out since
            with immediate(self._lease_db):
                self._lease_db.execute("update state set next_op = max(next_op, ?)", (op_floor(time.time()),))
            return lease

    def renew(self, lease: Lease) -> None:
        with self._lease_lock, sqlite_errors(self._path), immediate(self._lease_db):
            leases.extend(self._lease_db, lease)

    def release(self, lease: Lease) -> None:
        with self._lease_lock, sqlite_errors(self._path):
            leases.release(self._lease_db, lease)

    # what is there

    def source_state(self, tag: str) -> SourceState | None:
        with sqlite_errors(self._path):
            sql = "select lsn, slot, system_id, timeline from sources where tag = ?"
            row = self._db.execute(sql, (tag,)).fetchone()
        if row is None:
            return None
        return SourceState(tag, Lsn(int(str(row[0]))), str(row[1]), str(row[2]), int(str(row[3])))

    def tables(self, tag: str) -> list[StoredTable]:
        with sqlite_errors(self._path):
            return tables.load_tables(self._db, tag)

    def active_config(self) -> StoredConfig | None:
        with sqlite_errors(self._path):
            sql = "select c.id, c.yaml from state s join configs c on c.id = s.config"
            row = self._db.execute(sql).fetchone()
        return None if row is None else StoredConfig(int(str(row[0])), str(row[1]))

    def activate_config(self, lease: Lease, yaml: str) -> StoredConfig:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            config_id = bulk.set_active_config(self._db, yaml)
            self._db.execute("update state set config = ?", (config_id,))
        self._waker.wake()
        return StoredConfig(config_id, yaml)

    def subkey_salt(self) -> bytes:
        with sqlite_errors(self._path):
            salt = self._db.execute("select value from meta where key = 'salt'").fetchall()[0][0]
        if not isinstance(salt, bytes):
            raise StoreError("the store has lost its salt", str(self._path), "move it away to build a new store")
        return salt

    def bulk_records(self) -> list[BulkRecord]:
        sql = "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id"
        with sqlite_errors(self._path):
            return [BulkRecord(*row) for row in self._db.execute(sql)]

    # live

    def begin(self, lease: Lease) -> SqliteFlush:
        with sqlite_errors(self._path):
            return SqliteFlush(self._db, lease, self._known_buckets, self._waker.wake)

    # bulk

    def staging_directory(self) -> str:
        directory = self._directory.resolve() / "stage"
        directory.mkdir(exist_ok=True)
        return str(directory)

    def discard_staged(self, lease: Lease) -> None:
        with sqlite_errors(self._path):
            bulk.discard(self._db, lease)
        shutil.rmtree(self._directory / "stage", ignore_errors=True)

    def stage_tables(self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]]) -> list[StagedTable]:
        with sqlite_errors(self._path):
            return bulk.stage_tables(self._db, lease, source, tables)

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        with sqlite_errors(self._path):
            bulk.stage(self._db, lease, parts)

    def publish(
        self, lease: Lease, state: SourceState, tables: Sequence[StagedTable], config: str, record: BulkRecord
    ) -> Checkpoint:
        with sqlite_errors(self._path):
            bulk.index_rows(self._db, lease, tables)
            bulk.publish(self._db, lease, state, tables, config, record)
            checkpoint = read_checkpoint(self._db)
        self._known_buckets.clear()
        shutil.rmtree(self._directory / "stage", ignore_errors=True)
        self._waker.wake()
        return checkpoint

    def close(self) -> None:
        self._db.close()
        self._lease_db.close()
        self._waker.close()
