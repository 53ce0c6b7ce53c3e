"""The embedded store: SQLite files in one directory, one writing process per source, any number of readers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress
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
from headwater.storage.shared import history
from headwater.storage.shared.history import HistoryDb
from headwater.storage.shared.loading import BATCH_BYTES
from headwater.storage.sqlite import archive, rows
from headwater.storage.sqlite.bulk.stage import StageFile
from headwater.storage.sqlite.control import remove, seal, stats, store_stats, told
from headwater.storage.sqlite.history import export, verify
from headwater.storage.sqlite.history.compact import SqliteCompaction
from headwater.storage.sqlite.history.forget import SqliteForget
from headwater.storage.sqlite.reader import SqliteReader
from headwater.storage.sqlite.store import SqliteStore


@dataclass(frozen=True, slots=True)
class SqliteBackend:
    """See `storage.backend.Backend`."""

    address: SqliteAddress

    @property
    def _directory(self) -> Path:
        return Path(self.address.directory)

    def exists(self) -> bool:
        return stats.exists(self.address)

    def heard_last(self, tag: str) -> Heard:
        return told.heard_last(self._directory, tag)

    def raise_if_published(self, publications: Sequence[str]) -> None:
        """Never: no database publishes a file."""

    def lacking(self) -> list[Lacking]:
        directory = self._directory.absolute()
        nearest = next(each for each in (directory, *directory.parents) if each.exists())
        needed = [(nearest, os.W_OK | os.X_OK), *((each, os.W_OK) for each in directory.glob("*") if each.is_file())]
        barred = [path for path, right in needed if not os.access(path, right)]
        return [Lacking(f"{path} can't be written", ()) for path in barred[:1]]

    def older_format(self) -> int | None:
        return stats.older_format(self.address)

    def open_store(self) -> SqliteStore:
        return SqliteStore(self._directory)

    def open_reader(self, own: OwnConfig | None = None) -> SqliteReader:
        return SqliteStore.open_reader(self._directory, own)

    def open_compaction(self) -> SqliteCompaction:
        return SqliteCompaction(self._directory)

    def open_forget(self) -> SqliteForget:
        return SqliteForget(self.address)

    def open_verify(self) -> AbstractContextManager[VerifyReader]:
        return verify.open_verify(self.address)

    def definition_stats(self) -> list[DefinitionStats]:
        return stats.definition_stats(self.address)

    def disk_use(self) -> Disk:
        return store_stats.disk_use(self.address)

    def store_stats(self) -> StoreStats:
        return store_stats.store_stats(self.address)

    def remove(self) -> None:
        remove.remove(self._directory)

    def open_part(self, table: int, number: int, attempt: str) -> StageFile:
        return StageFile(self._directory / "stage" / f"part-{number:05d}-{attempt}.db", table, attempt)

    def read_rows(self, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        return rows.read_rows(self._directory, table, first, end, room)

    def find_row(self, table: int, row_id: str) -> CurrentRow | None:
        return rows.find_row(self._directory, table, row_id)

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
