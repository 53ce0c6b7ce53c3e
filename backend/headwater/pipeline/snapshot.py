"""A snapshot: divides tables into ranges of pages; each task copies one, evaluates the rows and writes a part.

Runs on executors and imports no pyspark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headwater.bulk.bound_table import bind, oversized_ops_of, oversized_row
from headwater.bulk.contract import SnapshotJob, SnapshotTable
from headwater.decode.copytext import key_cells, split_line
from headwater.oplog.limits import (
    OVERSIZED_NAMED,
    SURELY_A_ROW,
    is_stub,
    read_stub,
    stored_line,
)
from headwater.oplog.row_id import IdentityKind, RowIdentity, content_id, copy_id, random_id
from headwater.oplog.transform import OVERSIZED, Buckets, DraftOp
from headwater.pipeline.progress import TaskProgress
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import source_errors
from headwater.source.rows.copy import PageRange, PartitionError, read_lines
from headwater.storage.contract.parts import CurrentRow, StagedPart, new_row
from headwater.storage.open import open_store
from headwater.storage.sql.parts import PartWriter
from headwater_rules.results import LookupEntry

LARGEST_PAGES = 8_192  # 64 MB: small enough to show progress and to repeat, large enough for the overhead of a task
SMALLEST_PAGES = 2_048  # 16 MB, some tens of thousands of rows: less takes less time than starting another task
_ROWS_A_PAGE = 60


@dataclass(frozen=True, slots=True)
class Partition(PageRange):
    """The pages that one task reads into generation `table_id` of the store."""

    table_id: int


def partitions(tables: Sequence[SnapshotTable], parallelism: int) -> list[Partition]:
    """Ranges for about four tasks a core, but none tiny and none huge. The last range of a leaf has no end, since the
    leaf may have grown since its size was read."""
    total = sum(leaf.pages for table in tables for leaf in table.published.leaves)
    size = min(LARGEST_PAGES, max(SMALLEST_PAGES, total // max(1, parallelism * 4) + 1))
    return [
        Partition(table.published, leaf, first, end, table.table_id)
        for table in tables
        for leaf in table.published.leaves
        for first, end in _ranges(leaf.pages, size)
    ]


def is_small(table: PublishedTable) -> bool:
    """Whether a table is estimated to be small enough for one task, however many leaves it has."""
    return sum(leaf.pages for leaf in table.leaves) <= SMALLEST_PAGES


def expected_rows(tables: Sequence[SnapshotTable]) -> int:
    """About how many rows the tables have. The planner has no estimate for a table that was never analysed."""
    leaves = [leaf for table in tables for leaf in table.published.leaves]
    return sum(leaf.estimated_rows or leaf.pages * _ROWS_A_PAGE for leaf in leaves)


def _ranges(pages: int, size: int) -> Iterator[tuple[int, int | None]]:
    starts = list(range(0, max(pages, 1), size))
    yield from zip(starts, [*starts[1:], None], strict=True)


@dataclass(frozen=True, slots=True)
class CountedCopies:
    """How often rows of a table without key are in earlier partitions, by content: their numbers are used already."""

    before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    partition: Partition
    copies: CountedCopies

    def run(self, job: SnapshotJob, number: int, attempt: str) -> StagedPart:
        worker = _Worker(job, self.partition, self.copies)
        with (
            source_errors(job.source),
            TaskProgress(job.directory, number, attempt) as progress,
            open_store(job.store).open_part(self.partition.table_id, number, attempt) as part,
        ):
            for lines in read_lines(job.source, job.snapshot, self.partition, worker.refused.append):
                worker.write(lines, part)
                progress.add(len(lines))
            return replace(part.finish(), refused=tuple(worker.refused[:OVERSIZED_NAMED]))


@dataclass(frozen=True, slots=True)
class CountTask:
    """Count how often each row is in a partition, by content."""

    partition: Partition

    def run(self, job: SnapshotJob, number: int, attempt: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        with source_errors(job.source):
            for lines in read_lines(job.source, job.snapshot, self.partition):
                counts.update(map(content_id, lines))
        return counts


class _Worker:
    def __init__(self, job: SnapshotJob, partition: Partition, copies: CountedCopies) -> None:
        relation, name = partition.table.relation, partition.table.qualified_name
        bound = bind([job.plan], job.source.name, relation, job.types, partition.table_id, job.keys)
        if bound is None:
            raise PartitionError("the rules do not use this table", name)
        self._transform = bound.at(job.now).transform
        self._identity = RowIdentity.of(relation)
        self._width = len(relation.columns)
        self._copies: Counter[str] = Counter(copies.before)
        self._table = name
        self.refused: list[str] = []  # rows and ops that are too large, in words

    def write(self, lines: list[str], part: PartWriter) -> None:
        rows: list[CurrentRow] = []
        lookups: list[tuple[str, LookupEntry]] = []
        ops: list[DraftOp] = []
        buckets: Buckets = {}
        flips: dict[str, int] = {}
        write, width, row_id_of = self._transform.write, self._width, self._row_id
        for line in lines:
            if len(line) > SURELY_A_ROW and is_stub(stub := stored_line(line)):
                row_id = row_id_of(line, key_cells(line, width, self._identity.columns))
                self.refused.append(oversized_row(self._table, row_id, read_stub(stub).size))
                rows.append(CurrentRow(row_id, 0, stub, "", None))
                continue
            cells = split_line(line, width)
            row_id = row_id_of(line, cells)
            members, entries, _, flip = write("", None, row_id, cells, ops, buckets)
            rows.append(new_row(CurrentRow, (row_id, 0, line, members, None)))
            if OVERSIZED in members:
                self.refused += oversized_ops_of(self._table, row_id, members)
            if entries:
                lookups += [(row_id, entry) for entry in entries]
            if flip is not None:
                flips[row_id] = flip
        part.write(rows, lookups, ops, buckets, flips)

    def _row_id(self, line: str, cells: Sequence[str | None]) -> str:
        kind = self._identity.kind
        if kind is IdentityKind.KEY:
            return self._identity.key(cells)
        if kind is IdentityKind.NOTHING:
            return random_id()
        content = content_id(line)
        self._copies[content] += 1
        return copy_id(content, self._copies[content])
