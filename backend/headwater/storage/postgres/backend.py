"""The store in a Postgres database, version 14 or newer: several writers, one at a time per source, and any number of
readers, on any number of machines. Everything is in one schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.archive import Dump, Load
from headwater.storage.contract.history import (
    EVERY_BUCKET,
    START,
    WHOLE,
    FlushRange,
    HistoryFilter,
    HistoryLimits,
    HistoryOp,
    Slice,
    merge_floor,
)
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.contract.reader import Heard
from headwater.storage.contract.stats import DefinitionStats, Disk, Lacking, StoreStats
from headwater.storage.contract.verify import VerifyReader
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.postgres import archive, rows
from headwater.storage.postgres.bulk.stage import StageTables
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control import remove, seal, stats, store_stats
from headwater.storage.postgres.history import export, verify
from headwater.storage.postgres.history.compact import PostgresCompaction
from headwater.storage.postgres.history.forget import PostgresForget
from headwater.storage.postgres.published import lacking, raise_if_published
from headwater.storage.postgres.reader import PostgresReader
from headwater.storage.postgres.store import PostgresStore
from headwater.storage.shared import history
from headwater.storage.shared.history import HistoryDb
from headwater.storage.shared.loading import BATCH_BYTES


@dataclass(frozen=True, slots=True)
class PostgresBackend:
    """See `storage.backend.Backend`."""

    address: PostgresAddress

    def exists(self) -> bool:
        return stats.exists(self.address)

    def heard_last(self, tag: str) -> Heard:
        """Nothing: it tells into the store."""
        return Heard()

    def raise_if_published(self, publications: Sequence[str]) -> None:
        raise_if_published(self.address, publications)

    def lacking(self) -> list[Lacking]:
        return lacking(self.address)

    def older_format(self) -> int | None:
        return stats.older_format(self.address)

    def open_store(self) -> PostgresStore:
        return PostgresStore(self.address)

    def open_reader(self, own: OwnConfig | None = None) -> PostgresReader:
        return PostgresStore.open_reader(self.address, own)

    def open_compaction(self) -> PostgresCompaction:
        return PostgresCompaction(self.address)

    def open_forget(self) -> PostgresForget:
        return PostgresForget(self.address)

    def open_verify(self) -> AbstractContextManager[VerifyReader]:
        return verify.open_verify(self.address)

    def definition_stats(self) -> list[DefinitionStats]:
        return stats.definition_stats(self.address)

    def disk_use(self) -> Disk:
        return store_stats.disk_use(self.address)

    def store_stats(self) -> StoreStats:
        return store_stats.store_stats(self.address)

    def remove(self) -> None:
        with postgres_errors(self.address), connect(self.address) as connection:
            remove.remove(connection, self.address.schema)

    def open_part(self, table: int, number: int, attempt: str) -> StageTables:
        return StageTables(self.address, table, number, attempt)

    def read_rows(self, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        return rows.read_rows(self.address, table, first, end, room)

    def find_row(self, table: int, row_id: str) -> CurrentRow | None:
        return rows.find_row(self.address, table, row_id)

    def _history(self) -> AbstractContextManager[HistoryDb]:
        return export.reading(self.address)

    def history_limits(self, where: HistoryFilter = EVERY_BUCKET, *, since: OpId = START) -> HistoryLimits:
        return history.limits(self._history, where, since)

    def read_history(
        self,
        after_op: OpId,
        upto_op: OpId,
        where: HistoryFilter = EVERY_BUCKET,
        *,
        within: tuple[OpId, OpId] | None = None,
    ) -> Iterator[list[HistoryOp]]:
        merged_upto = merge_floor(after_op, upto_op, within)
        return history.read(self._history, (after_op, upto_op), where, merged_upto)

    def cut_history(self, after_op: OpId, upto_op: OpId, ops: int) -> list[tuple[OpId, OpId]]:
        return history.cut(self._history, after_op, upto_op, ops)

    def history_end(self, after_op: OpId, upto_op: OpId, ops: int) -> OpId:
        return history.end(self._history, after_op, upto_op, ops)

    def read_flushes(self, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
        return history.flushes(self._history, after_op, upto_op)

    def read_standing(
        self, checkpoint: OpId, where: HistoryFilter = EVERY_BUCKET, part: Slice = WHOLE
    ) -> Iterator[list[HistoryOp]]:
        return history.live(self._history, checkpoint, where, part)

    def seal(self, note: str) -> None:
        seal.seal(self.address, note)

    def unseal(self) -> str | None:
        return seal.unseal(self.address)

    def seal_note(self) -> str | None:
        return seal.note(self.address)

    def dump(self) -> AbstractContextManager[Dump]:
        return archive.dump(self.address)

    def check_empty(self) -> None:
        archive.check_empty(self.address)

    def load(self) -> AbstractContextManager[Load]:
        return archive.load(self.address)
