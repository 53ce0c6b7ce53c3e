"""The replicator's side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.storage.address import StoreAddress
from headwater.storage.contract.parts import BulkRecord, Places
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, SourceState, StoredTable
from tests.support.dictionaries.bulk import Bulk
from tests.support.dictionaries.flush import DictFlush
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import Table
from tests.support.dictionaries.versions import Versions


class DictStore(Bulk, Versions):
    """See `storage.backend.Store`."""

    def __init__(self, address: StoreAddress, kept: Kept) -> None:
        self.address = address
        self._kept = kept
        self._staging = ""
        self.acquire, self.renew, self.release = kept.acquire, kept.renew, kept.release

    def source_state(self, tag: str) -> SourceState | None:
        return self._kept.state.sources.get(tag)

    def tables(self, tag: str) -> list[StoredTable]:
        active = self._kept.state.active_tables()
        return [table.described(number) for number, table in active.items() if table.source == tag]

    def subkey_salt(self) -> bytes:
        return self._kept.state.salt

    def bulk_records(self) -> list[BulkRecord]:
        return list(self._kept.state.jobs)

    def note_job(self, record: BulkRecord) -> None:
        with self._kept.changing() as state:
            state.jobs += (record,)

    def noted(self, key: str) -> str:
        return self._kept.state.notes.get(key, "")

    def note(self, lease: Lease, key: str, text: str) -> None:
        with self._kept.changing(lease) as state:
            state.notes[key] = text

    def begin(self, lease: Lease) -> DictFlush:
        return DictFlush(self._kept, lease)

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        with self._kept.changing(lease) as state:
            made = [Table(source, (relation,), fingerprint, resync) for relation, fingerprint in tables]
            return [table.described(state.make_table(table)) for table in made]

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        with self._kept.changing(lease) as state:
            known = state.tables[table]
            known.fingerprint = fingerprint
            known.layouts += (relation,) if known.layouts[-1] != relation else ()
            return known.described(table)

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        with self._kept.changing(lease) as state:
            for table in tables:
                state.tables[table].resync = reason

    def drop_table(self, lease: Lease, table: int) -> None:
        with self._kept.changing(lease) as state:
            state.tables.pop(table, None)

    def move_source(self, lease: Lease, state: SourceState) -> None:
        with self._kept.changing(lease) as changed:
            changed.sources[state.tag] = state

    def cap_writes(self, tag: str, lsn: Lsn) -> None:
        with self._kept.changing() as state:
            for key, write in state.writes.items():
                if write.lsns.get(tag, lsn) > lsn:
                    state.last_write += 1
                    state.writes[key] = WriteCheckpoint(key, write.id, {**write.lsns, tag: lsn}, state.last_write)

    def place_ranges(self, table: int, rows: int) -> Places:
        places = [placed.place for placed in self._kept.state.tables[table].in_order()]
        ends = [*places[rows::rows], *([places[-1] + 1] if places else [])]
        return Places(tuple(zip(places[::rows], ends, strict=True)), len(places))

    def staging_directory(self) -> str:
        self._staging = self._staging or tempfile.mkdtemp(prefix="headwater-stage-")
        Path(self._staging).mkdir(exist_ok=True)
        return self._staging

    def discard_staged(self, lease: Lease) -> None:
        super().discard_staged(lease)
        self.close()

    def close(self) -> None:
        if self._staging:
            shutil.rmtree(self._staging, ignore_errors=True)
