"""Everything that can be done with a store, in every database. A database is a folder beside this module with an
implementation of what is abstract here, and a case in `storage.open`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager

from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import ArchiveError, Dump
from headwater.storage.contract.history import FlushRange
from headwater.storage.contract.parts import CurrentRow, JoinedLookups, PlacedRow
from headwater.storage.contract.reader import ReplicatorStatus, StoreReader
from headwater.storage.contract.store import StoreError
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.shared import archive
from headwater.storage.shared.archive import Load
from headwater.storage.shared.common import BATCH_BYTES
from headwater.storage.sql import lookups, seal, stats, tables
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.cursor import Cursor, TableGoneError
from headwater.storage.sql.forget import ForgetStore
from headwater.storage.sql.history import HistoryReader
from headwater.storage.sql.parts import PartWriter
from headwater.storage.sql.stats import DefinitionStats, Disk, MissingRight, StoreStats
from headwater.storage.sql.verify import VerifyReader
from headwater.storage.sql.writer import StoreWriter

_BATCH_ROWS = 5_000


class Store(ABC):
    """A store at an address. Creating this object touches nothing; every method opens what it needs. Methods that take
    no lease only read, except `seal`, `unseal` and the loading of a store that is not in use yet."""

    @property
    @abstractmethod
    def address(self) -> StoreAddress: ...

    @abstractmethod
    def _open(self, purpose: str) -> Cursor:
        """A cursor that reads an existing store."""

    @abstractmethod
    def _databases(self, purpose: str) -> Sequence[Cursor]:
        """Cursors that write to an existing store: one for each database that it consists of, the main one first.
        Raises StoreError when there is none."""

    @abstractmethod
    def missing(self) -> StoreError:
        """The error where there is no store."""

    # the processes of the service

    @abstractmethod
    def exists(self) -> bool:
        """Whether a store exists there. Raises StoreError when that can't be determined."""

    @abstractmethod
    def last_replicator_status(self, tag: str) -> ReplicatorStatus:
        """The status that the replicator of a source last reported, as far as that is known without the store."""

    @abstractmethod
    def raise_if_published(self, publications: Sequence[str]) -> None:
        """Raise StorePublishedError when one of the publications, in the store's database, has tables of the store."""

    @abstractmethod
    def missing_rights(self) -> list[MissingRight]:
        """What a start needs of the place of the store, and our user or role does not have. Changes nothing."""

    @abstractmethod
    def older_format(self) -> int | None:
        """The format of an existing store that `open_writer` would upgrade; None if it has this version's. Raises
        StoreError for one that only newer versions know."""

    @abstractmethod
    def open_writer(self) -> StoreWriter:
        """The writing side. Creates the store if it does not exist, and upgrades an older format."""

    @abstractmethod
    def open_reader(self, own: OwnConfig | None = None) -> StoreReader:
        """The endpoint's side. It serves its `own` config while that is being replaced by another file. Creates an
        empty store if there is none, so that processes may start in any order."""

    @abstractmethod
    def open_compaction(self) -> CompactionStore:
        """A separate connection to an existing store, for compaction."""

    @abstractmethod
    def open_forget(self) -> ForgetStore:
        """A separate connection to an existing store, to find and erase values."""

    def open_verify(self) -> AbstractContextManager[VerifyReader]:
        """A view of the store as of now, until the context ends."""
        return closing(VerifyReader(lambda: self._open("audit")))

    def definition_stats(self) -> list[DefinitionStats]:
        """Statistics of all definitions that have buckets, by name, at one moment. Reads all of the history once."""
        with closing(self._open("stats")) as db, db.snapshot():
            return stats.definition_stats(db)

    def disk_use(self) -> Disk:
        """How large a store is. Reads a part of every page of the embedded store, a second for some GB."""
        with closing(self._open("stats")) as db, db.snapshot():
            return stats.disk_use(db)

    def store_stats(self) -> StoreStats:
        """Statistics of the store. Reads all of it once, beside its writer."""
        with closing(self._open("stats")) as db, db.snapshot():
            return stats.store_stats(db)

    @abstractmethod
    def remove(self) -> None:
        """Permanently remove a store that nobody uses, and nothing else. A call after one that was interrupted removes
        the rest. Raises StoreError."""

    # executors

    @abstractmethod
    def open_part(self, table: int, number: int, attempt: str) -> PartWriter:
        """The writer for task `number` of a bulk job that fills `table`. `attempt` distinguishes its attempts."""

    def read_rows(self, table: int, first: int, end: int, batch_bytes: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        """The current rows at places [first, end) of a table, as of one moment, in batches of about `batch_bytes`
        at most. None when the table is gone."""
        with closing(self._open("bulk work")) as db, db.snapshot():
            if db.has_table(f"rows_{table:d}"):
                yield from db.dialect.placed_rows(db, table, first, end, count=_BATCH_ROWS, batch_bytes=batch_bytes)

    def read_flips(self, table: int, row_ids: Sequence[str]) -> dict[str, int]:
        """When those of the rows have to be evaluated again, as of now, that have to be: in microseconds since 1970."""
        with closing(self._open("bulk work")) as db:
            return tables.flips(db, table, row_ids)

    def read_joined(self, known: JoinedLookups, keys: Sequence[str]) -> dict[str, list[str]]:
        """What these lookups give under keys, as of now, by key. Keys of others are left out."""
        if not keys:
            return {}
        with closing(self._open("bulk work")) as db:
            return lookups.outputs(db, known, keys)

    def find_row(self, table: int, row_id: str) -> CurrentRow | None:
        """One current row, as of now. None when there is none, or no such table."""
        query = f"select layout, line, members, subkey from rows_{table:d} where row_id = ?"
        with closing(self._open("looking")) as db:
            try:
                row = db.one(query, db.dialect.stored_row_id(row_id))
            except TableGoneError:
                return None
        return None if row is None else CurrentRow(row_id, *row)

    # history in bulk, see `contract.history`

    @contextmanager
    def open_history(self) -> Iterator[HistoryReader]:
        """A view of the store as of now, until the context ends."""
        with closing(self._open("history")) as db, db.snapshot():
            if not db.has_table("meta"):
                raise self.missing()
            yield HistoryReader(db)

    def read_flushes(self, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
        """See `HistoryReader.flushes`."""
        with self.open_history() as history:
            return history.flushes(after_op, upto_op)

    # exporting and importing a whole store, see `contract.archive`

    def seal(self, note: str) -> None:
        """Refuse every write from now on; `note` says why, and where the store went. Raises LeaseHeldError while any
        lease of the store is held, SealedStoreError when it is sealed already."""
        with _closing(self._databases("seal")) as databases:
            seal.seal(databases, note)

    def unseal(self) -> str | None:
        """Allow writes again. Returns the note, or None when the store was not sealed."""
        with _closing(self._databases("seal")) as databases:
            return seal.unseal(databases)

    def seal_note(self) -> str | None:
        """The note of a sealed store, else None."""
        with closing(self._open("seal")) as db:
            return seal.seal_note(db)

    @contextmanager
    def dump(self) -> Iterator[Dump]:
        """The state of the store now, readable until the context ends whatever is written meanwhile. Raises
        ArchiveError when there is no store."""
        if not self.exists():
            missing = self.missing()
            raise ArchiveError(missing.what, missing.where, missing.fix)
        self.open_writer().close()  # upgrades its format
        with closing(self._open("export")) as db, db.snapshot():
            yield archive.dump(db)

    @abstractmethod
    def check_empty(self) -> None:
        """Raises StoreNotEmptyError when there is a store that was ever used. A store that a process merely created on
        start counts as empty."""

    @abstractmethod
    def load(self) -> AbstractContextManager[Load]:
        """Begin to build a store, which is discarded unless it is finished. Raises StoreNotEmptyError when there is one
        that was ever used."""


@contextmanager
def _closing(databases: Sequence[Cursor]) -> Iterator[Sequence[Cursor]]:
    try:
        yield databases
    finally:
        for db in databases:
            db.close()
