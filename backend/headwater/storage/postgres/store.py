"""The replicator's side of a store in Postgres."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from psycopg import pq

from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import BulkRecord, Places, StagedPart, StagedTable
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.revocations import Revocation, RevokedKind
from headwater.storage.contract.store import Lease, SourceState, StoredTable
from headwater.storage.contract.versions import ConfigVersion, Origin, OwnConfig, VersionState
from headwater.storage.postgres import tables as generations
from headwater.storage.postgres.bulk import pages, takeover
from headwater.storage.postgres.checkpoints import read_checkpoint
from headwater.storage.postgres.connection import Connections, connect, postgres_errors, usable
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.control import retire, write_checkpoints
from headwater.storage.postgres.control.database import PostgresControl
from headwater.storage.postgres.control.sweep import Sweeper
from headwater.storage.postgres.flush import PostgresFlush
from headwater.storage.postgres.migrate import migrate, read_secret
from headwater.storage.postgres.reader import PostgresReader
from headwater.storage.postgres.rows import place_ranges
from headwater.storage.shared.common import KnownBuckets, op_floor
from headwater.storage.shared.control import moved_buckets, requests, revocations, versions


class PostgresStore:
    """See `storage.contract.store.StoreWriter`. Creates the schema if it does not exist. One thread flushes; all other
    methods may be called from any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._staging: str | None = None
        self._known_buckets = KnownBuckets()
        self._connections = Connections(address, "store")
        self._sweeper = Sweeper(self._connections)
        self._flushing: psycopg.Connection | None = None
        self._flushing_for: Lease | None = None
        try:
            with self._connections.lend() as connection:
                migrate(connection, address)
        except BaseException:
            self._connections.close()
            raise

    @staticmethod
    def open_reader(address: PostgresAddress, own: OwnConfig | None = None) -> PostgresReader:
        """See `Backend.open_reader`."""
        with closing(connect(address)) as connection, postgres_errors(address):
            migrate(connection, address)
        return PostgresReader(address, own)

    @property
    def address(self) -> PostgresAddress:
        return self._address

    @contextmanager
    def _holding(self, lease: Lease) -> Iterator[psycopg.Connection]:
        with self._connections.lend() as connection, leases.holding(connection, lease):
            yield connection

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        with self._connections.lend() as connection:
            lease = leases.acquire(connection, name, owner, ttl)
            # A database restored from a backup must continue above all ids given out since that backup
            now = connection.execute("select extract(epoch from clock_timestamp())").fetchall()[0][0]
            connection.execute("update state set next_op = greatest(next_op, %s)", [op_floor(float(now))])
            return lease

    def renew(self, lease: Lease) -> None:
        with self._connections.lend() as connection:
            leases.extend(connection, lease)

    def release(self, lease: Lease) -> None:
        with self._connections.lend() as connection:
            leases.release(connection, lease)

    # reading

    def source_state(self, tag: str) -> SourceState | None:
        query = "select lsn, slot, system_id, timeline from sources where tag = %s"
        with self._connections.lend() as connection:
            row = connection.execute(query, [tag]).fetchone()
        return None if row is None else SourceState(tag, Lsn(row[0]), row[1], row[2], row[3])

    def tables(self, tag: str) -> list[StoredTable]:
        with self._connections.lend() as connection:
            return generations.active(connection, tag)

    def keys(self) -> StoreKeys:
        with self._connections.lend() as connection:
            return moved_buckets.keys(PostgresControl(connection), read_secret(connection))

    def bulk_records(self) -> list[BulkRecord]:
        query = "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id"
        with self._connections.lend() as connection:
            return [BulkRecord(*row) for row in connection.execute(query)]

    # live replication

    def begin(self, lease: Lease) -> PostgresFlush:
        with postgres_errors(self._address):
            connection = self._flush_connection(lease)
            return PostgresFlush(connection, self._address, lease, self._known_buckets, self._sweeper.start)

    def _flush_connection(self, lease: Lease) -> psycopg.Connection:
        kept = self._flushing
        if kept is None or not usable(kept) or kept.info.transaction_status != pq.TransactionStatus.IDLE:
            if kept is not None:
                kept.close()
            self._flushing = kept = connect(self._address, "flush")
            self._flushing_for = None
        if self._flushing_for != lease:
            leases.note_session(kept, lease)
            self._flushing_for = lease
        return kept

    # bulk jobs

    def staging_directory(self) -> str:
        if self._staging is None:
            self._staging = tempfile.mkdtemp(prefix="headwater-stage-")
        Path(self._staging).mkdir(mode=0o700, exist_ok=True)
        return self._staging

    def discard_staged(self, lease: Lease) -> None:
        with self._connections.lend() as connection:
            takeover.discard(connection, lease)
        self._empty_staging()
        self._sweeper.start()

    def _empty_staging(self) -> None:
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        with self._connections.lend() as connection:
            return takeover.make_tables(connection, lease, source, tables, indexed=indexed)

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        with self._connections.lend() as connection:
            takeover.stage(connection, lease, parts)

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        with self._connections.lend() as connection:
            return takeover.stage_page(connection, lease, part, page)

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        sides: Mapping[str, str],
        record: BulkRecord,
    ) -> Checkpoint:
        with self._connections.lend() as connection:
            takeover.index_rows(connection, lease, tables)
            takeover.publish(connection, lease, state, tables, version, sides, record)
            checkpoint = read_checkpoint(connection)
        self._empty_staging()
        self._sweeper.start()
        return checkpoint

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        with self._connections.lend() as connection:
            pages.take(connection, lease, part, page, skip)
            return read_checkpoint(connection)

    def note_job(self, record: BulkRecord) -> None:
        with self._connections.lend() as connection:
            takeover.note_job(connection, record)

    def note(self, lease: Lease, key: str, text: str) -> None:
        with self._connections.lend() as connection, leases.holding(connection, lease):
            connection.execute(
                "insert into meta values (%s, %s) on conflict (key) do update set value = excluded.value", [key, text]
            )

    def tell(self, lease: Lease, text: str) -> None:
        with self._connections.lend() as connection:
            leases.tell(connection, lease, text)

    def noted(self, key: str) -> str:
        with self._connections.lend() as connection:
            row = connection.execute("select value from meta where key = %s", [key]).fetchone()
            return "" if row is None else str(row[0])

    # tables

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        with self._holding(lease) as connection:
            made = {
                generations.create_active(connection, source, [relation], fingerprint, resync)
                for relation, fingerprint in tables
            }
            return [table for table in generations.active(connection, source) if table.id in made]

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        with self._holding(lease) as connection:
            return generations.add_layout(connection, table, relation, fingerprint)

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        with self._connections.lend() as connection:
            replaced = takeover.replace_table(connection, lease, table, staged, resync)
        self._sweeper.start()
        return replaced

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        with self._holding(lease) as connection:
            generations.mark_resync(connection, tables, reason)

    def drop_table(self, lease: Lease, table: int) -> None:
        with self._holding(lease) as connection:
            connection.execute("update tables set state = 'dropped' where id = %s", [table])
        self._sweeper.start()

    def move_source(self, lease: Lease, state: SourceState) -> None:
        with self._holding(lease) as connection:
            takeover.set_source(connection, state)

    def cap_writes(self, tag: str, lsn: Lsn) -> None:
        with self._connections.lend() as connection:
            write_checkpoints.cap(connection, self._address.schema, tag, lsn)

    def place_ranges(self, table: int, rows: int) -> Places:
        with self._connections.lend() as connection:
            return place_ranges(connection, table, rows)

    # versions and requests

    def inbox(self) -> int:
        with self._connections.lend() as connection:
            return int(connection.execute("select number from inbox").fetchall()[0][0])

    def versions(self) -> list[ConfigVersion]:
        with self._connections.lend() as connection:
            return versions.load(PostgresControl(connection))

    def deploy(self, yaml: str, origin: Origin) -> ConfigVersion:
        with self._connections.lend() as connection:
            return versions.deploy(PostgresControl(connection), yaml, origin)

    def activate(self, lease: Lease, version: int, sides: Mapping[str, str]) -> Checkpoint:
        with self._connections.lend() as connection:
            versions.activate(PostgresControl(connection), lease, version, sides)
            return read_checkpoint(connection)

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        with self._connections.lend() as connection:
            versions.mark(PostgresControl(connection), lease, version, state, note)

    def complete_sides(self) -> dict[str, str]:
        with self._connections.lend() as connection:
            return versions.complete_sides(PostgresControl(connection))

    def begin_sides(self, lease: Lease, sides: Mapping[str, str]) -> None:
        with self._connections.lend() as connection:
            versions.begin_sides(PostgresControl(connection), lease, sides)

    def unfinished_sides(self) -> list[str]:
        with self._connections.lend() as connection:
            return versions.unfinished_sides(PostgresControl(connection))

    def retire(self, lease: Lease, sides: Sequence[str], limit: int) -> bool:
        with self._connections.lend() as connection:
            return retire.step(connection, lease, sides, limit)

    def submit(self, kind: str, source: str, payload: str) -> int:
        with self._connections.lend() as connection:
            return requests.submit(PostgresControl(connection), kind, source, payload)

    def revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        with self._connections.lend() as connection:
            return revocations.revoke(PostgresControl(connection), kind, value, seconds)

    def request(self, request: int) -> Request | None:
        with self._connections.lend() as connection:
            return requests.find(PostgresControl(connection), request)

    def open_requests(self, source: str) -> list[Request]:
        with self._connections.lend() as connection:
            return requests.unfinished(PostgresControl(connection), source)

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        with self._connections.lend() as connection:
            requests.update(PostgresControl(connection), lease, request, state, progress, result)

    def close(self) -> None:
        self._sweeper.close()
        if self._flushing is not None:
            with contextlib.suppress(psycopg.Error):
                self._flushing.close()
        self._connections.close()
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
