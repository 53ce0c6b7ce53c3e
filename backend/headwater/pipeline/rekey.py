"""The tasks of a re-key: read current rows, and write them under the ids of the table's new replica identity.

Runs on executors and imports no pyspark. A row keeps its values, memberships and subkeys, so nothing changes on
devices. A row whose new id can't be derived gets an id that no row of the source has, so that the comparison that
follows removes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.bulk.bound_table import BoundTable, bind, current_cells, distinct, only_renamed
from headwater.bulk.contract import RekeyJob
from headwater.decode.copytext import join_cells
from headwater.decode.wire import DecodeError
from headwater.oplog.limits import is_stub, read_stub
from headwater.oplog.row_id import IdentityKind, RowIdentity, content_id, copy_id, subkey_origin
from headwater.oplog.transform import decode_memberships, expected_memberships, rekeyed_memberships
from headwater.pipeline.progress import TaskProgress
from headwater.pipeline.snapshot import CountedCopies
from headwater.storage.contract.parts import CurrentRow, PlacedRow, StagedPart
from headwater.storage.open import open_store
from headwater_rules.results import LookupEntry

_PAGE_ROWS = 2_000

_UNKNOWN = "\x01"
"""The beginning of ids that no row of the source has."""


def needs_counts(job: RekeyJob) -> bool:
    """Whether equal rows can be in several ranges, so that their copies have to be counted first."""
    return len(job.ranges) > 1 and RowIdentity.of(job.stored.relation).kind is IdentityKind.FULL


@dataclass(frozen=True, slots=True)
class RekeyCountTask:
    """Count how often each row is at places [first, end), by content."""

    first: int
    end: int

    def run(self, job: RekeyJob, number: int, attempt: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        keys = _Keys(job, counts)
        for batch in open_store(job.store).read_rows(job.stored.id, self.first, self.end, job.batch_bytes):
            for _, row in batch:
                keys.of(row, _cells(job, row))
        return counts


@dataclass(frozen=True, slots=True)
class RekeyTask:
    """Write the rows at places [first, end)."""

    first: int
    end: int
    copies: CountedCopies = field(default_factory=CountedCopies)

    def run(self, job: RekeyJob, number: int, attempt: str) -> StagedPart:
        keys = _Keys(job, Counter(self.copies.before))
        relation, plans = job.stored.relation, distinct(job.plans)
        bound = bind(plans, job.source_name, relation, job.types, job.target, job.keys)
        bound = bound and bound.at(job.now)
        with (
            TaskProgress(job.directory, number, attempt) as progress,
            open_store(job.store).open_part(job.target, number, attempt) as part,
        ):
            for batch in open_store(job.store).read_rows(job.stored.id, self.first, self.end, job.batch_bytes):
                for first in range(0, len(batch), _PAGE_ROWS):
                    rows, lookups, flips = _page(job, keys, bound, batch[first : first + _PAGE_ROWS])
                    part.write(rows, lookups, (), {}, flips)
                    part.end_page()
                progress.add(len(batch))
            return part.finish()


Cells = Sequence[str | None]


def _page(
    job: RekeyJob, keys: _Keys, bound: BoundTable | None, batch: Sequence[PlacedRow]
) -> tuple[list[CurrentRow], list[tuple[str, LookupEntry]], dict[str, int]]:
    """The rows, lookups and flips of one page, which the store takes over between two flushes of the stream."""
    rows: list[CurrentRow] = []
    lookups: list[tuple[str, LookupEntry]] = []
    flips: dict[str, int] = {}
    for _, row in batch:
        cells = _cells(job, row)
        row_id = keys.of(row, cells)
        if row_id is None:
            continue
        members = rekeyed_memberships(row.members, row.row_id, row_id)
        subkey = row.subkey or subkey_origin(job.stored.id, row.row_id)
        rows.append(CurrentRow(row_id, row.layout, row.line, members, subkey))
        if bound is not None and (bound.has_lookups or bound.has_clock) and cells is not None:
            puts, entries, _, flip = bound.transform.evaluate(cells, row_id)
            lookups += [(row_id, entry) for entry in entries]
            # It keeps its memberships, which may be of another time: then it is due at once
            same = expected_memberships(puts, job.keys) == set(decode_memberships(members, row_id))
            at = flip if same else job.now
            if bound.has_clock and at is not None:
                flips[row_id] = at
    return rows, lookups, flips


class _Keys:
    """Gives rows their ids. `copies` counts the equal rows so far."""

    def __init__(self, job: RekeyJob, copies: Counter[str]) -> None:
        layouts = job.stored.layouts
        self._identity = RowIdentity.of(job.stored.relation)
        self._renamed = {number for number, layout in enumerate(layouts) if only_renamed(layout, layouts[-1])}
        self._copies = copies

    def of(self, row: CurrentRow, cells: Cells | None) -> str | None:
        """The new id of a row. None for a row without a new id that is in no bucket: it is left out."""
        if self._identity.kind is IdentityKind.FULL:
            content = read_stub(row.line).content if is_stub(row.line) else content_id(self._content(row, cells))
            self._copies[content] += 1
            return copy_id(content, self._copies[content])
        if self._identity.kind is IdentityKind.NOTHING:
            return row.row_id
        if cells is None or any(cells[position] is None for position in self._identity.columns):
            return f"{_UNKNOWN}{row.row_id}" if row.members else None
        return self._identity.key(cells)

    def _content(self, row: CurrentRow, cells: Cells | None) -> str:
        # If columns were not just renamed, the comparison that follows finds no row of the source with such an id
        return row.line if cells is None or row.layout in self._renamed else join_cells(cells)


def _cells(job: RekeyJob, row: CurrentRow) -> Cells | None:
    if is_stub(row.line):
        return None
    try:
        return current_cells(job.stored.layouts, row)
    except DecodeError:
        return None
