"""All that can be done with one store, whichever back end keeps it. A back end is a folder beside this with an
implementation of `Backend`, and a line in `storage.open`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import Dump, DumpPart, Load, Row
from headwater.storage.contract.compaction import UpkeepStore
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
from headwater.storage.contract.parts import PartWriter, PlacedRow
from headwater.storage.contract.requests import RequestStore
from headwater.storage.contract.stats import DefinitionStats, StoreStats
from headwater.storage.contract.store import StoreReader, StoreWriter
from headwater.storage.contract.verify import VerifyReader
from headwater.storage.contract.versions import OwnConfig, VersionStore
from headwater.storage.shared.loading import BATCH_BYTES


class Store(StoreWriter, VersionStore, RequestStore, Protocol):
    """Everything that a store can do for those who write to it."""

    @property
    def address(self) -> StoreAddress: ...


class Backend(Protocol):
    """One store by its address. Making this touches nothing; every method opens what it needs. Those that take no
    lease only read, but for `seal`, `unseal` and the loading of a store that nobody uses yet."""

    # the processes of the service

    def exists(self) -> bool:
        """Whether somebody has made a store there. Raises StoreError when the place cannot be looked at."""

    def open_store(self) -> Store:
        """The writing side; makes a new store where there is none, and brings an older format up to date."""

    def open_reader(self, own: OwnConfig | None = None) -> StoreReader:
        """The endpoint's side, which serves its `own` config while that is replaced by another file. Makes an empty
        store when there is none, so that processes may start in any order."""

    def open_compaction(self) -> UpkeepStore:
        """A connection of its own to a store that exists, to keep histories short."""

    def open_forget(self) -> ForgetStore:
        """A connection of its own to a store that exists, to find and erase values."""

    def open_verify(self) -> AbstractContextManager[VerifyReader]:
        """Look at a store as of now, until the end of the context."""

    def definition_stats(self) -> list[DefinitionStats]:
        """All definitions that have buckets, by name, as of one moment. Reads all of the history once."""

    def store_stats(self) -> StoreStats:
        """Reads all of the store once, beside its writer."""

    def remove(self) -> None:
        """Remove a store that nobody uses, for good, and nothing that is not its own. One that was cut short is done
        again. Raises StoreError."""

    # executors

    def open_part(self, table: int, number: int, attempt: str) -> PartWriter:
        """Where task `number` writes what is to go into `table`. `attempt` tells its tries apart."""

    def read_rows(self, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        """The current rows at places [first, end) of a table, as of one moment, in batches of no more than about
        `room` bytes."""

    # history in bulk, see `contract.history`: executors too

    def history_limits(self, where: HistoryFilter = EVERY_BUCKET, *, since: OpId = START) -> HistoryLimits:
        """How far history goes now. A store that nothing was published in yet has checkpoint 0. Raises OvertakenError
        when compaction has merged anything that a reader at `since` has not read; one at 0 has nothing to lose by
        that."""

    def read_history(
        self,
        after_op: OpId,
        upto_op: OpId,
        where: HistoryFilter = EVERY_BUCKET,
        *,
        within: tuple[OpId, OpId] | None = None,
    ) -> Iterator[list[HistoryOp]]:
        """Ops with after_op < op_id <= upto_op, each once, in batches and in no order, as of one moment.

        The range is part of `within` (by default all of it), which a reader that stands at its beginning is catching
        up with. Raises OvertakenError when compaction has merged anything after that beginning; a reader at 0 has
        nothing to lose by that, unless compaction went past the end.
        """

    def cut_history(self, after_op: OpId, upto_op: OpId, ops: int) -> list[tuple[OpId, OpId]]:
        """(after_op, upto_op] as consecutive ranges of about `ops` ops each; none when there are no ops at all."""

    def history_end(self, after_op: OpId, upto_op: OpId, ops: int) -> OpId:
        """The highest op id up to which (after_op, …] holds no more than `ops` ops: the end of a flush where one is in
        reach, `upto_op` when all fit."""

    def read_flushes(self, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
        """What is still known of the flushes with ops in (after_op, upto_op], oldest first. Records are kept for a
        while only, so the oldest ops may belong to none."""

    def read_standing(
        self, checkpoint: OpId, where: HistoryFilter = EVERY_BUCKET, part: Slice = WHOLE
    ) -> Iterator[list[HistoryOp]]:
        """The PUTs that stand in the buckets of a part at a checkpoint, each with the op id of its own, in batches and
        in no order. Raises OvertakenError when compaction went past the checkpoint."""

    # a whole store, out of its back end and into another one, see `contract.archive`

    def seal(self, note: str) -> None:
        """Refuse every write from now on; `note` says why, and where the store went. Raises LeaseHeldError while
        somebody holds a lease of the store, SealedStoreError when it is sealed."""

    def unseal(self) -> str | None:
        """Allow writes again. Returns the note, None when the store was not sealed."""

    def seal_note(self) -> str | None:
        """The note of a sealed store, else None."""

    def dump(self, scratch: Path) -> AbstractContextManager[Dump]:
        """The state of a store now, which stays readable until the context ends, whatever is written meanwhile. Needs
        `scratch`, a directory that executors see too, where the back end knows no such thing itself. Raises
        ArchiveError when there is no store."""

    def read_part(self, snapshot: str, part: DumpPart) -> Iterator[list[Row]]:
        """On an executor: the rows of a part of a dump, in batches of bounded size. `snapshot` is the dump's."""

    def check_empty(self) -> None:
        """Raises StoreNotEmptyError when there is a store that was ever used. One that a process made by being started
        is empty."""

    def load(self) -> AbstractContextManager[Load]:
        """Begin to build a store. Raises StoreNotEmptyError when there is one that was ever used."""

    def load_rows(self, dataset: str, batches: Iterable[Sequence[Row]]) -> None:
        """Add rows to a store that is being built: all of them or none."""
