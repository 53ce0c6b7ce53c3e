"""One store transaction of live replication."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import finished_op
from headwater.oplog.transform import BucketName, DraftOp
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, Progress
from headwater.storage.shared.common import NAMEABLE
from headwater_rules.results import LookupEntry
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import Flushed, Table


class DictFlush:
    """See `storage.contract.store.Flush`. Nobody else writes until its end, so its lease can't be lost meanwhile."""

    def __init__(self, kept: Kept, lease: Lease) -> None:
        self._kept = kept
        self._lease = lease
        self._state = kept.begin(lease)
        self._open = True
        self._first_op = self._state.next_op
        self._touched: set[int] = set()
        self._touched_lookups: set[str] = set()

    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        return self.load(table, row_ids, sys.maxsize)[0]

    def load(self, table: int, row_ids: Sequence[str], room: int) -> tuple[dict[str, CurrentRow], int]:
        rows, found = self._state.tables[table].rows, dict[str, CurrentRow]()
        for number, row_id in enumerate(row_ids, 1):
            if row_id in rows:
                found[row_id] = rows[row_id].row
                room -= len(rows[row_id].row.line)
                if room <= 0:
                    return found, number
        return found, len(row_ids)

    def copies(self, table: int, content: str) -> list[str]:
        return [row_id for row_id in self._state.tables[table].rows if row_id.partition("#")[0] == content]

    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        for row in rows:
            self._state.tables[table].put(row)

    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None:
        for row_id in row_ids:
            self._state.tables[table].rows.pop(row_id, None)

    def table_members(self, table: int) -> Iterator[tuple[str, str, str | None]]:
        for _, row in self._state.tables[table].in_order():
            if row.members:
                yield row.row_id, row.members, row.subkey

    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        rows = [placed.row for placed in self._state.tables[table].rows.values()]
        return {line: [row.row_id for row in rows if row.line == line] for line in lines}

    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]:
        return list(self._state.tables[table].lookups.get(row_id, ()))

    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None:
        held = self._state.tables[table]
        before = held.lookups.pop(row_id, ())
        if entries:
            held.add_lookups(row_id, list(entries))
        self._touched_lookups |= {entry.key for entry in {*before} ^ {*entries}}

    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        self._state.tables[table].resync = reason

    def append(self, ops: Sequence[DraftOp], buckets: Mapping[int, BucketName]) -> None:
        for op in ops:
            bucket = self._state.bucket(op.bucket, buckets.get(op.bucket))
            if bucket is not None:
                self._touched.add(op.bucket)
                op_id = self._state.take_op()
                bucket.hot[op_id] = finished_op(op_id, op.body).encode()
                bucket.hold(op_id, 1, op.checksum)

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        wanted = set(definitions)
        for key, bucket in sorted(self._state.buckets.items()):
            if bucket.definition in wanted and bucket.last_op > bucket.clear_op:
                bucket.clear(self._state.take_op())
                self._touched.add(key)
        gone = self._state.tables.pop(table)
        self._touched_lookups |= {entry.key for entries in gone.lookups.values() for entry in entries}
        return self._state.make_table(Table(gone.source, gone.layouts, gone.fingerprint, gone.resync))

    def begin_anew(self, bucket: int, name: BucketName | None) -> None:
        known = self._state.buckets.get(bucket)
        named = BucketName(known.name, known.definition) if known is not None and name is None else name
        if named is not None:
            made = self._state.make_bucket(bucket, named)
            made.compacted_op = made.clear_op
            self._touched.add(bucket)

    def commit(self, source: str, progress: Progress) -> Checkpoint:
        state = self._state
        if self._touched_lookups and state.next_op == self._first_op:
            state.take_op()  # a lookup alone moves the checkpoint too
        if source in state.sources:
            before = state.sources[source]
            state.sources[source] = replace(before, lsn=Lsn(max(before.lsn, progress.lsn)))
        if state.next_op > self._first_op:
            state.checkpoint = last = state.next_op - 1
            touched = _named(state.buckets[key].name for key in self._touched), _named(self._touched_lookups)
            state.flushes[last] = Flushed(last, source, progress.lsn, progress.committed_us, *touched)
        self._kept.commit(state, self._lease)
        self._open = False
        return state.told_checkpoint()

    def rollback(self) -> None:
        if self._open:
            self._kept.rollback()
            self._open = False


def _named(names: Iterable[str]) -> str | None:
    listed = sorted(names)
    return orjson.dumps(listed).decode() if len(listed) <= NAMEABLE else None
