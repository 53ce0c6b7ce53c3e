"""Everything that can be done with a store, in every back end. A back end is a folder beside this module with an
implementation of `Backend`, and a case in `storage.open`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import Dump, Load
from headwater.storage.contract.compaction import CompactionStore
from headwater.storage.contract.forget import ForgetStore
from headwater.storage.contract.history import (
    EVERY_BUCKET,
    START,
    WHOLE,
    FlushRange,
    HistoryFilter,
    HistoryLimits,
    HistoryOp,
    Slice,
)
from headwater.storage.contract.parts import CurrentRow, PartWriter, PlacedRow
from headwater.storage.contract.reader import Heard, StoreReader
from headwater.storage.contract.requests import RequestStore
from headwater.storage.contract.revocations import RevocationStore
from headwater.storage.contract.stats import DefinitionStats, Disk, Lacking, StoreStats
from headwater.storage.contract.store import StoreWriter
from headwater.storage.contract.verify import VerifyReader
from headwater.storage.contract.versions import OwnConfig, VersionStore
from headwater.storage.shared.loading import BATCH_BYTES


class Store(StoreWriter, VersionStore, RequestStore, RevocationStore, Protocol):
    """The writing side of a store."""

    @property
    def address(self) -> StoreAddress: ...


class Backend(Protocol):
    """A store at an address. Creating this object touches nothing; every method opens what it needs. Methods that take
    no lease only read, except `seal`, `unseal` and the loading of a store that is not in use yet."""

    # the processes of the service

    def exists(self) -> bool:
        """Whether a store exists there. Raises StoreError when that can't be determined."""

    def heard_last(self, tag: str) -> Heard:
        """What the replicator of a source has told last, as far as that is known without the store."""

    def raise_if_published(self, publications: Sequence[str]) -> None:
        """Raise StorePublishedError when one of the publications, in the store's database, has tables of the store."""

    def lacking(self) -> list[Lacking]:
        """What a start needs of the place of the store, and our user or role does not have. Changes nothing."""

    def older_format(self) -> int | None:
        """The format of an existing store that `open_store` would upgrade; None if it has this version's. Raises
        StoreError for one that only newer versions know."""

    def open_store(self) -> Store:
        """The writing side. Creates the store if it does not exist, and upgrades an older format."""

    def open_reader(self, own: OwnConfig | None = None) -> StoreReader:
        """The endpoint's side. It serves its `own` config while that is being replaced by another file. Creates an
        empty store if there is none, so that processes may start in any order."""

    def open_compaction(self) -> CompactionStore:
        """A separate connection to an existing store, for compaction."""

    def open_forget(self) -> ForgetStore:
        """A separate connection to an existing store, to find and erase values."""

    def open_verify(self) -> AbstractContextManager[VerifyReader]:
        """A view of the store as of now, until the context ends."""

    def definition_stats(self) -> list[DefinitionStats]:
        """Statistics of all definitions that have buckets, by name, at one moment. Reads all of the history once."""

    def disk_use(self) -> Disk:
        """How large a store is. Reads a part of every page of the embedded store, a second for some GB."""

    def store_stats(self) -> StoreStats:
        """Statistics of the store. Reads all of it once, beside its writer."""

    def remove(self) -> None:
        """Permanently remove a store that nobody uses, and nothing else. A call after one that was interrupted removes
        the rest. Raises StoreError."""

    # executors

    def open_part(self, table: int, number: int, attempt: str) -> PartWriter:
        """The writer for task `number` of a bulk job that fills `table`. `attempt` distinguishes its attempts."""

    def read_rows(self, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        """The current rows at places [first, end) of a table, as of one moment, in batches of about `room` bytes at
        most."""

    def find_row(self, table: int, row_id: str) -> CurrentRow | None:
        """One current row, as of now. None when there is none, or no such table."""

    # history in bulk, see `contract.history`: executors too

    def history_limits(self, where: HistoryFilter = EVERY_BUCKET, *, since: OpId = START) -> HistoryLimits:
        """How far history goes now. An unpublished store has checkpoint 0. Raises OvertakenError when compaction has
        merged ops that a reader at `since` has not read; a reader at 0 is never overtaken."""

    def read_history(
        self,
        after_op: OpId,
        upto_op: OpId,
        where: HistoryFilter = EVERY_BUCKET,
        *,
        within: tuple[OpId, OpId] | None = None,
    ) -> Iterator[list[HistoryOp]]:
        """Ops with after_op < op_id <= upto_op, each once, in unordered batches, as of one moment.

        `within`, by default the same range, is the range that the reader reads in several calls. Raises OvertakenError
        when compaction has merged ops after its beginning; for a reader that begins at 0, only when compaction went
        past its end.
        """

    def cut_history(self, after_op: OpId, upto_op: OpId, ops: int) -> list[tuple[OpId, OpId]]:
        """Split (after_op, upto_op] into consecutive ranges of about `ops` ops each; none when there are no ops."""

    def history_end(self, after_op: OpId, upto_op: OpId, ops: int) -> OpId:
        """The highest op id up to which (after_op, …] holds at most `ops` ops: the end of a flush if possible,
        `upto_op` when all fit."""

    def read_flushes(self, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
        """The recorded flushes with ops in (after_op, upto_op], oldest first. Records are kept for a limited time, so
        the oldest ops may belong to none."""

    def read_standing(
        self, checkpoint: OpId, where: HistoryFilter = EVERY_BUCKET, part: Slice = WHOLE
    ) -> Iterator[list[HistoryOp]]:
        """The live PUTs in a part of the buckets at a checkpoint, each with its own op id, in unordered batches. Raises
        OvertakenError when compaction went past the checkpoint."""

    # dumping and loading a whole store, see `contract.archive`

    def seal(self, note: str) -> None:
        """Refuse every write from now on; `note` says why, and where the store went. Raises LeaseHeldError while any
        lease of the store is held, SealedStoreError when it is sealed already."""

    def unseal(self) -> str | None:
        """Allow writes again. Returns the note, or None when the store was not sealed."""

    def seal_note(self) -> str | None:
        """The note of a sealed store, else None."""

    def dump(self) -> AbstractContextManager[Dump]:
        """The state of the store now, readable until the context ends whatever is written meanwhile. Raises
        ArchiveError when there is no store."""

    def check_empty(self) -> None:
        """Raises StoreNotEmptyError when there is a store that was ever used. A store that a process merely created on
        start counts as empty."""

    def load(self) -> AbstractContextManager[Load]:
        """Begin to build a store. Raises StoreNotEmptyError when there is one that was ever used."""
