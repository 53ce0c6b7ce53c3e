"""The replicator's side of the embedded store."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import BulkRecord, Places, StagedPart, StagedTable
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.revocations import Revocation, RevokedKind
from headwater.storage.contract.store import Lease, SourceState, StoredTable, StoreError
from headwater.storage.contract.versions import ConfigVersion, Origin, OwnConfig, VersionState
from headwater.storage.shared.common import KnownBuckets, op_floor
from headwater.storage.shared.control import moved_buckets, requests, revocations, versions
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite import tables as generations
from headwater.storage.sqlite.bulk import pages, takeover
from headwater.storage.sqlite.connection import immediate, open_writer, sqlite_errors
from headwater.storage.sqlite.control import lease as leases
from headwater.storage.sqlite.control import retire
from headwater.storage.sqlite.control.database import SqliteControl
from headwater.storage.sqlite.control.told import Teller
from headwater.storage.sqlite.control.write_checkpoints import WriteCheckpoints
from headwater.storage.sqlite.files import OpenedFiles
from headwater.storage.sqlite.flush import SqliteFlush, read_checkpoint
from headwater.storage.sqlite.migrate import migrate, read_secret
from headwater.storage.sqlite.reader import SqliteReader
from headwater.storage.sqlite.rows import place_ranges
from headwater.storage.sqlite.wake import Waker


class SqliteStore:
    """See `storage.contract.store.StoreWriter`. Creates `directory` if it does not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "store.db"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store's directory can't be created: {error.strerror}", str(directory)) from error
        self._db = open_writer(self._path)
        self._lease_db = open_writer(self._path)
        self._lease_lock = threading.Lock()
        self._waker = Waker(directory)
        self._teller: Teller | None = None
        self._known_buckets = KnownBuckets()
        with sqlite_errors(self._path):
            migrate(self._db, self._path)
        self._files = OpenedFiles(self._path)

    @staticmethod
    def open_reader(directory: Path, own: OwnConfig | None = None) -> SqliteReader:
        """See `Backend.open_reader`."""
        SqliteStore(directory).close()
        return SqliteReader(directory, own)

    @property
    def address(self) -> SqliteAddress:
        return SqliteAddress(str(self._directory.resolve()))

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        with self._lease_lock, sqlite_errors(self._path):
            lease = leases.acquire(self._lease_db, name, owner, ttl)
            # A file restored from a backup must continue above all ids given out since that backup
            with immediate(self._lease_db):
                self._lease_db.execute("update state set next_op = max(next_op, ?)", (op_floor(time.time()),))
            return lease

    def renew(self, lease: Lease) -> None:
        with self._lease_lock, sqlite_errors(self._path), immediate(self._lease_db):
            leases.extend(self._lease_db, lease)

    def release(self, lease: Lease) -> None:
        with self._lease_lock, sqlite_errors(self._path):
            leases.release(self._lease_db, lease)
        self._hush()

    # reading

    def source_state(self, tag: str) -> SourceState | None:
        with sqlite_errors(self._path):
            sql = "select lsn, slot, system_id, timeline from sources where tag = ?"
            row = self._db.execute(sql, (tag,)).fetchone()
        if row is None:
            return None
        return SourceState(tag, Lsn(as_int(row[0])), str(row[1]), str(row[2]), as_int(row[3]))

    def tables(self, tag: str) -> list[StoredTable]:
        with sqlite_errors(self._path):
            return generations.load_tables(self._db, tag)

    def keys(self) -> StoreKeys:
        with sqlite_errors(self._path):
            return moved_buckets.keys(SqliteControl(self._db), read_secret(self._db))

    def bulk_records(self) -> list[BulkRecord]:
        sql = "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id"
        with sqlite_errors(self._path):
            return [BulkRecord(*row) for row in self._db.execute(sql)]

    # live replication

    def begin(self, lease: Lease) -> SqliteFlush:
        with sqlite_errors(self._path):
            return SqliteFlush(self._db, lease, self._known_buckets, self._committed)

    def _committed(self) -> None:
        """Called after a commit, which the caller then confirms to the source: checks first that the files were not
        removed or replaced."""
        self._files.check()
        self._waker.wake()

    # bulk jobs

    def staging_directory(self) -> str:
        directory = self._directory.resolve() / "stage"
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the directory for parts of bulk jobs can't be created: {error.strerror}", str(directory), "remove it"
            ) from error
        return str(directory)

    def discard_staged(self, lease: Lease) -> None:
        with sqlite_errors(self._path):
            takeover.discard(self._db, lease)
        shutil.rmtree(self._directory / "stage", ignore_errors=True)

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        with sqlite_errors(self._path):
            return takeover.stage_tables(self._db, lease, source, tables, indexed=indexed)

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        with sqlite_errors(self._path):
            takeover.stage(self._db, lease, parts)

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        with sqlite_errors(self._path):
            return takeover.stage_page(self._db, lease, part, page)

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        sides: Mapping[str, str],
        record: BulkRecord,
    ) -> Checkpoint:
        with sqlite_errors(self._path):
            takeover.index_rows(self._db, lease, tables)
            takeover.publish(self._db, lease, state, tables, version, sides, record)
        shutil.rmtree(self._directory / "stage", ignore_errors=True)
        return self._moved()

    def _moved(self) -> Checkpoint:
        self._waker.wake()
        with sqlite_errors(self._path):
            return read_checkpoint(self._db)

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        with sqlite_errors(self._path):
            pages.take(self._db, lease, part, page, skip)
        return self._moved()

    def note_job(self, record: BulkRecord) -> None:
        with sqlite_errors(self._path), immediate(self._db):
            takeover.note_job(self._db, record)

    def note(self, lease: Lease, key: str, text: str) -> None:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            self._db.execute("insert or replace into meta values (?, ?)", (key, text))

    def noted(self, key: str) -> str:
        with sqlite_errors(self._path):
            row = self._db.execute("select value from meta where key = ?", (key,)).fetchone()
            return "" if row is None else str(row[0])

    def tell(self, lease: Lease, text: str) -> None:
        if self._teller is None or self._teller.lease != lease:
            self._hush()
            self._teller = Teller(self._directory, lease)
        self._teller.tell(text)

    def _hush(self) -> None:
        if self._teller is not None:
            self._teller.close()
            self._teller = None

    # tables

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            made = {
                generations.create_active(self._db, source, [relation], fingerprint, resync)
                for relation, fingerprint in tables
            }
            return [table for table in generations.load_tables(self._db, source) if table.id in made]

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            return generations.add_layout(self._db, table, relation, fingerprint)

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        with sqlite_errors(self._path):
            replaced = takeover.replace_table(self._db, lease, table, staged, resync)
        self._waker.wake()
        return replaced

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            generations.mark_resync(self._db, tables, reason)

    def drop_table(self, lease: Lease, table: int) -> None:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            generations.drop_generation(self._db, table)

    def move_source(self, lease: Lease, state: SourceState) -> None:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            takeover.set_source(self._db, state)

    def cap_writes(self, tag: str, lsn: Lsn) -> None:
        with closing(WriteCheckpoints(self._directory / "write_checkpoints.db")) as writes:
            writes.cap(tag, lsn)
        self._waker.wake()

    def place_ranges(self, table: int, rows: int) -> Places:
        with sqlite_errors(self._path):
            return place_ranges(self._db, table, rows)

    # versions and requests: any process may submit them, so they use a connection that no flush occupies

    def inbox(self) -> int:
        with self._lease_lock, sqlite_errors(self._path):
            return as_int(self._lease_db.execute("select inbox from state").fetchall()[0][0])

    def versions(self) -> list[ConfigVersion]:
        with self._lease_lock, sqlite_errors(self._path):
            return versions.load(SqliteControl(self._lease_db))

    def deploy(self, yaml: str, origin: Origin) -> ConfigVersion:
        with self._lease_lock, sqlite_errors(self._path):
            return versions.deploy(SqliteControl(self._lease_db), yaml, origin)

    def activate(self, lease: Lease, version: int, sides: Mapping[str, str]) -> Checkpoint:
        with sqlite_errors(self._path):
            versions.activate(SqliteControl(self._db), lease, version, sides)
        return self._moved()

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        with sqlite_errors(self._path):
            versions.mark(SqliteControl(self._db), lease, version, state, note)

    def complete_sides(self) -> dict[str, str]:
        with sqlite_errors(self._path):
            return versions.complete_sides(SqliteControl(self._db))

    def begin_sides(self, lease: Lease, sides: Mapping[str, str]) -> None:
        with sqlite_errors(self._path):
            versions.begin_sides(SqliteControl(self._db), lease, sides)

    def unfinished_sides(self) -> list[str]:
        with sqlite_errors(self._path):
            return versions.unfinished_sides(SqliteControl(self._db))

    def retire(self, lease: Lease, sides: Sequence[str], limit: int) -> bool:
        with sqlite_errors(self._path):
            return retire.step(self._db, lease, sides, limit)

    def submit(self, kind: str, source: str, payload: str) -> int:
        with self._lease_lock, sqlite_errors(self._path):
            return requests.submit(SqliteControl(self._lease_db), kind, source, payload)

    def revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        with self._lease_lock, sqlite_errors(self._path):
            revocation = revocations.revoke(SqliteControl(self._lease_db), kind, value, seconds)
        self._waker.wake()
        return revocation

    def request(self, request: int) -> Request | None:
        with self._lease_lock, sqlite_errors(self._path):
            return requests.find(SqliteControl(self._lease_db), request)

    def open_requests(self, source: str) -> list[Request]:
        with self._lease_lock, sqlite_errors(self._path):
            return requests.unfinished(SqliteControl(self._lease_db), source)

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        with sqlite_errors(self._path):
            requests.update(SqliteControl(self._db), lease, request, state, progress, result)

    def close(self) -> None:
        self._hush()
        self._db.close()
        self._lease_db.close()
        self._waker.close()
