"""Brings a lake up to date with a store, round by round. See docs/lake.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import pyarrow as pa
from msgspec.structs import replace

from headwater.lake.directory import LakeDirectory
from headwater.lake.manifest import ForeignLakeError, LakeFile, Manifest, Snapshot
from headwater.lake.tables import (
    BUCKETS,
    OPS,
    ROWS,
    Origins,
    Record,
    bucket_records,
    op_records,
    row_records,
    write_table,
)
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.history import HistoryState
from headwater.storage.sql.history import HistoryReader
from headwater.storage.store import Store

OPS_PER_FILE = 100_000
_KEPT_SNAPSHOTS = 2  # somebody may still be reading the one before

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Round:
    """What a round added: a number of ops, and whether a snapshot. It is not `complete` if it was stopped before."""

    ops: int
    snapshot: bool
    complete: bool


class _StoppedError(Exception):
    """A file was given up, because the export is to end."""


@dataclass(frozen=True)
class Exporter:
    """Writes to a lake what a store has. `stop` says whether to end at the next safe point; `report` is called with
    what there is of the lake in the middle of a round."""

    store: Store
    lake: LakeDirectory
    stop: Callable[[], bool]
    report: Callable[[Manifest], None]
    ops_per_file: int = OPS_PER_FILE

    def run_round(self, snapshot_age: float) -> Round:
        """Add everything up to the store's checkpoint, then a snapshot if something changed since the last one and that
        is older than `snapshot_age` in seconds. Raises ForeignLakeError, StoreError and OSError; the lake is then what
        the last commit made it."""
        with self.store.open_history() as view:
            state = view.state()
            _check_continues(self.lake, state, view)
            files, snapshot, complete = self.lake.manifest.files, False, False
            with suppress(_StoppedError):
                self._add_ops(view, state)
                if _is_snapshot_due(self.lake.manifest, snapshot_age):
                    self._add_snapshot(view)
                    snapshot = True
                complete = True
        now = self.lake.manifest
        ops = sum(file.rows for path, file in now.files.items() if path.startswith("ops/") and path not in files)
        return Round(ops, snapshot, complete)

    def _add_ops(self, view: HistoryReader, state: HistoryState) -> None:
        draft = self.lake.manifest
        if not draft.files:
            draft = self._with_ops(draft, [], 0, 0)  # a table without a file has no columns
        for after, upto in view.cut(OpId(draft.position), state.checkpoint, self.ops_per_file):
            if draft is not self.lake.manifest:
                self.lake.commit(draft)
                self.report(draft)
            records = op_records(self._each(view.ops(after, upto)), Origins(view.flushes(after, upto)))
            draft = self._with_ops(draft, records, after + 1, upto)
        draft = replace(
            draft,
            checkpoint=state.checkpoint,
            position=state.checkpoint,
            flush=view.flushed_at(state.checkpoint),
            definitions=state.definitions,
            sources={source: format_lsn(lsn) for source, lsn in sorted(state.lsns.items())},
        )
        if draft != self.lake.manifest:
            self.lake.commit(draft)

    def _add_snapshot(self, view: HistoryReader) -> None:
        """Add a snapshot of the view, and remove those that nobody should be reading any more."""
        before = self.lake.manifest
        op, taken = before.checkpoint, time.time()
        rows = (
            row_records(table, self._each(view.rows(table)), op, before.sources.get(table.source))
            for table in view.tables()
        )
        name = f"{op:020d}-{int(taken * 1e6):020d}.parquet"  # definitions can end between two at one checkpoint
        snapshot = Snapshot(op, taken, before.definitions, before.sources, f"rows/{name}", f"buckets/{name}")
        added = {
            snapshot.rows: self._write(snapshot.rows, ROWS, chain.from_iterable(rows)),
            snapshot.buckets: self._write(snapshot.buckets, BUCKETS, bucket_records(self._each(view.live()), op)),
        }
        kept = (*before.snapshots, snapshot)[-_KEPT_SNAPSHOTS:]
        gone = {path for each in before.snapshots if each not in kept for path in (each.rows, each.buckets)}
        left = {path: file for path, file in before.files.items() if path not in gone}
        self.lake.commit(replace(before, snapshots=kept, files={**left, **added}))

    def _with_ops(self, draft: Manifest, records: Iterable[Record], first: int, last: int) -> Manifest:
        path = f"ops/{first:020d}-{last:020d}.parquet"
        file = self._write(path, OPS, records)
        return replace(draft, position=last, files={**draft.files, path: file})

    def _write(self, path: str, schema: pa.Schema, records: Iterable[Record]) -> LakeFile:
        with self.lake.new_file(path) as file:
            count = write_table(file, schema, records)
            return LakeFile(count, file.tell())

    def _each(self, batches: Iterable[list[_T]]) -> Iterator[_T]:
        for batch in batches:
            if self.stop():
                raise _StoppedError
            yield from batch


def _is_snapshot_due(manifest: Manifest, age: float) -> bool:
    """Whether the last snapshot is no longer the state of the store, and is old enough."""
    if not manifest.snapshots:
        return True
    last = manifest.snapshots[-1]
    # A change that no device sees moves a source's position alone
    here = manifest.checkpoint, manifest.definitions, manifest.sources
    same = (last.checkpoint, last.definitions, last.sources) == here
    return not same and abs(time.time() - last.taken) >= age


def _check_continues(lake: LakeDirectory, state: HistoryState, view: HistoryReader) -> None:
    """Raise ForeignLakeError when the store is not the one, in a later state, that the lake has ops of."""
    manifest, fix = lake.manifest, "write the lake anew with --reset, or name another directory"
    if manifest.store != state.store:
        raise ForeignLakeError("the lake has ops of another store", lake.where, fix)
    if manifest.position > state.checkpoint:
        what = f"the lake has ops up to {manifest.position}, and the store ends at op {state.checkpoint}: it went back"
        raise ForeignLakeError(what, lake.where, fix)
    checkpoint = OpId(manifest.checkpoint)
    if manifest.flush is None or not view.knows_flushes_before(checkpoint):
        return
    if view.flushed_at(checkpoint) != manifest.flush:
        what = f"the store did not pass op {checkpoint}, which the lake ends at: it went back and took another way"
        raise ForeignLakeError(what, lake.where, fix)
