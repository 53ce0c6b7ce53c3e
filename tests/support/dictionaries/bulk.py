"""What tasks of bulk jobs write, and how a store takes it over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from headwater.oplog.change import Relation
from headwater.oplog.transform import BucketName, DraftOp
from headwater.storage.contract.parts import BulkRecord, CurrentRow, PlacedRow, StagedPart, StagedTable
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, PartLostError, SourceState
from headwater.storage.shared.pages import openings, without
from headwater.storage.shared.segments import SegmentPacker
from headwater_rules.results import LookupEntry
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import Packed, Page, State, Table
from tests.support.dictionaries.versions import set_active


class DictPart:
    """See `storage.contract.parts.PartWriter`."""

    def __init__(self, kept: Kept, table: int, number: int, attempt: str) -> None:
        self._kept = kept
        self._part = StagedPart(f"part-{number}-{attempt}", table, 0, 0, attempt)
        self._pages = [Page()]
        self._packer = SegmentPacker(lambda *segment: self._pages[-1].segments.append(Packed(*segment)))
        self._ops = 0

    def __enter__(self) -> DictPart:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[int, BucketName],
    ) -> None:
        self._pages[-1].rows += rows
        self._pages[-1].lookups += lookups
        self._pages[-1].buckets.update(buckets)
        self._packer.add(ops)
        self._ops += len(ops)

    def end_page(self) -> None:
        self._packer.seal_all()
        self._pages.append(Page())

    def finish(self) -> StagedPart:
        self._packer.seal_all()
        self._kept.parts[self._part.path] = self._pages
        rows = sum(len(page.rows) for page in self._pages)
        return replace(self._part, rows=rows, ops=self._ops, pages=len(self._pages) - 1)


class Bulk:
    """What a store takes over, see `storage.contract.store.StoreWriter`."""

    _kept: Kept

    def _pages(self, part: StagedPart) -> list[Page]:
        if part.path not in self._kept.parts:
            raise PartLostError("a part of the bulk job is missing", part.path, "the job starts over")
        return self._kept.parts[part.path]

    def discard_staged(self, lease: Lease) -> None:
        with self._kept.changing(lease) as state:
            state.tables = state.active_tables()
            state.staged, state.staged_buckets = (), {}
        self._kept.parts.clear()

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        with self._kept.changing(lease) as state:
            made = [Table(source, (relation,), fingerprint, active=False) for relation, fingerprint in tables]
            return [StagedTable(state.make_table(table), table.layouts[0]) for table in made]

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        with self._kept.changing(lease) as state:
            for part in parts:
                for page in self._pages(part):
                    _stage(state, state.tables[part.table], page)

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        taken = self._pages(part)[page]
        with self._kept.changing(lease) as state:
            table, ids = state.tables[part.table], [row.row_id for row in taken.rows]
            if len({*ids, *table.rows}) < len(ids) + len(table.rows):
                return False
            _stage(state, table, taken)
            return True

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        sides: Mapping[str, str],
        record: BulkRecord,
    ) -> Checkpoint:
        with self._kept.changing(lease) as changed:
            _publish(changed, state, {table.id for table in tables})
            # All rows are new: what they give for other row sides is not there, and what was there is cleared
            changed.sides = {name: (digest, "retiring") for name, (digest, _) in changed.sides.items()}
            set_active(changed, version, sides)
            changed.move(state.tag, None, None)
            changed.jobs += (record,)
        self._kept.parts.clear()
        return changed.told_checkpoint()

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        with self._kept.changing(lease) as state:
            new, old = state.tables[staged.id], state.tables.get(table)
            if new.doubled or old is None or not old.active:
                return False
            del state.tables[table]
            new.layouts, new.fingerprint, new.resync, new.active = old.layouts, old.fingerprint, resync, True
            # What a lookup gives can follow from the row id: whoever reads one asks again
            state.move(lease.name, "[]", None)
            return True

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        taken = self._pages(part)[page]
        with self._kept.changing(lease) as state:
            touched = _take_page(state, part.table, taken, set(skip))
            state.move(lease.name, orjson.dumps(touched).decode(), None)
        return state.told_checkpoint()


def _stage(state: State, table: Table, page: Page) -> None:
    for row in page.rows:
        table.doubled |= row.row_id in table.rows
        table.put(row)
    for row_id, entry in page.lookups:
        table.add_lookups(row_id, [entry])
    state.staged_buckets.update(page.buckets)
    state.staged += tuple(page.segments)


def _publish(state: State, moved: SourceState, staged: set[int]) -> None:
    state.tables = {n: table for n, table in state.tables.items() if n in staged or table.source != moved.tag}
    for number in staged:
        state.tables[number].active = True
    for bucket in state.buckets.values():
        if bucket.last_op > bucket.clear_op:
            bucket.clear(state.take_op())
    for key, name in state.staged_buckets.items():
        state.bucket(key, name)
    for packed in sorted(state.staged, key=lambda packed: packed.bucket):
        state.number(packed)
    state.sources[moved.tag] = moved
    state.staged, state.staged_buckets = (), {}


def _take_page(state: State, number: int, page: Page, skip: set[str]) -> list[str]:
    """Returns the names of the buckets that it touches."""
    table = state.tables[number]
    skip |= {row.row_id for row in page.rows if row.row_id not in table.rows}
    for row in page.rows:
        if row.row_id not in skip:
            place, held = table.rows[row.row_id]
            table.rows[row.row_id] = PlacedRow(place, held._replace(members=_joined(held.members, row.members)))
    for row_id, entry in page.lookups:
        if row_id not in skip:
            table.add_lookups(row_id, [entry])
    left_out = openings(_drafted(page, skip), number, state.salt)
    filtered = [Packed(each.bucket, *without(each[1:], left_out.get(each.bucket, ()))) for each in page.segments]
    kept = [packed for packed in filtered if packed.size]
    for packed in kept:
        state.bucket(packed.bucket, page.buckets[packed.bucket])
        state.number(packed)
    return sorted({state.buckets[packed.bucket].name for packed in kept})


def _drafted(page: Page, row_ids: set[str]) -> Iterator[tuple[str, str, str | None]]:
    return ((row.row_id, row.members, row.subkey) for row in page.rows if row.row_id in row_ids)


def _joined(members: str, more: str) -> str:
    return f"{members[:-1]},{more[1:]}" if members and more else members or more
