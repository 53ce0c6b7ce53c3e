"""What one task of a snapshot does: COPY a range of a table's pages, run the shared transform, write a part.

Runs on executors and imports no pyspark. https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import pq, sql

from headwater.decode.copytext import split_line
from headwater.decode.values import row_converter
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.row_id import IdentityKind, RowIdentity, content_id, copy_id, random_id
from headwater.oplog.transform import BucketName, DraftOp, TableTransform
from headwater.source.catalog import Leaf, published_tables
from headwater.source.connect import connect, connection_error
from headwater.source.snapshot import SnapshotJob, SnapshotTable, TableChangedError
from headwater.storage.contract import CurrentRow, StagedPart
from headwater.storage.sqlite.stage import StageFile
from headwater_rules.results import LookupEntry
from headwater_rules.rows import bind_table

BATCH_ROWS = 5_000


class PartitionError(HeadwaterError):
    """A task could not read its range."""

    kind = Kind.RETRY
    code = "HW_5101"


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of pages of one leaf table: from `first` up to `end`, which None leaves open."""

    number: int
    table: SnapshotTable
    leaf: Leaf
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class CountedCopies:
    """How often rows of a table without key stood in earlier partitions, by content: numbering goes on from there."""

    before: Mapping[str, int] = field(default_factory=dict)


def read_lines(job: SnapshotJob, partition: Partition) -> Iterator[list[str]]:
    """The partition's rows as COPY text, in batches. Raises TableChangedError when the table is not, or does not
    stay, what the snapshot saw: a rewrite or a TRUNCATE would read as no rows and move others between ranges."""
    with connect(job.source, application_name="headwater snapshot") as watcher:
        _check_unchanged(watcher, job, partition)
        with connect(job.source, application_name="headwater snapshot") as conn:
            conn.execute("begin transaction isolation level repeatable read read only")
            conn.execute(sql.SQL("set transaction snapshot {}").format(job.snapshot))
            yield from _copy(conn, partition)
        _check_unchanged(watcher, job, partition)


def _check_unchanged(conn: psycopg.Connection, job: SnapshotJob, partition: Partition) -> None:
    seen = partition.table.published
    now = [t for t in published_tables(conn, job.source.publications) if t.relation.oid == seen.relation.oid]
    if not now or now[0].fingerprint != seen.fingerprint:
        raise TableChangedError(
            "a table was altered, rewritten or truncated during the snapshot", seen.qualified_name, "it is read again"
        )


def _copy(conn: psycopg.Connection, partition: Partition) -> Iterator[list[str]]:
    query = copy_query(partition).as_string(conn)
    pgconn = conn.pgconn
    result = pgconn.exec_(query.encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise PartitionError(_first_line(result.error_message), partition.table.published.qualified_name)
    # libpq hands over one line a call; psycopg's own Copy object would cost as much again for each
    get, lines = pgconn.get_copy_data, list[str]()
    while True:
        size, data = get(0)
        if size <= 0:
            break
        lines.append(str(data[: size - 1], "utf-8"))
        if len(lines) >= BATCH_ROWS:
            yield lines
            lines = []
    result = pgconn.get_result() or result
    if size == -2 or result.status != pq.ExecStatus.COMMAND_OK:
        raise PartitionError(_first_line(pgconn.error_message), partition.table.published.qualified_name)
    pgconn.get_result()
    yield lines


def copy_query(partition: Partition) -> sql.Composed:
    """The COPY of a partition: the columns that the stream sends, and the rows that it would."""
    published, leaf = partition.table.published, partition.leaf
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({partition.first},0)"))]
    if partition.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({partition.end},0)")))
    if published.row_filter is not None:
        conditions.append(sql.SQL("(" + published.row_filter + ")"))  # type: ignore[arg-type]  # from pg_get_expr
    return sql.SQL("copy (select {} from only {} where {}) to stdout").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in published.relation.columns),
        sql.Identifier(leaf.schema, leaf.name),
        sql.SQL(" and ").join(conditions),
    )


def _first_line(message: bytes | str) -> str:
    text = message if isinstance(message, str) else message.decode(errors="replace")
    return text.strip().split("\n")[0] or "the connection broke"


def run_partition(job: SnapshotJob, partition: Partition, attempt: str, copies: CountedCopies) -> StagedPart:
    """Read, transform and write one partition. The part bears the attempt's name until it is complete."""
    path = Path(job.directory) / f"part-{partition.number:05d}-{attempt}.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    worker = _Worker(job, partition, copies)
    rows = 0
    try:
        with StageFile(path) as part, _ProgressFile(job.directory, partition.number, attempt) as progress:
            for lines in read_lines(job, partition):
                worker.write(lines, part)
                rows += len(lines)
                progress.set(rows)
            part.finish()
            return StagedPart(str(path), partition.table.table_id, rows, part.ops, attempt)
    except psycopg.Error as error:
        raise connection_error(job.source, error) from error


class _ProgressFile:
    """Rows done, in a file that the driver sums up while the job runs."""

    def __init__(self, directory: str, number: int, attempt: str) -> None:
        self._path = Path(directory) / f"progress-{number:05d}-{attempt}"
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)

    def __enter__(self) -> _ProgressFile:
        return self

    def set(self, rows: int) -> None:
        os.pwrite(self._file, rows.to_bytes(8, "big"), 0)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        os.close(self._file)
        if failed is not None:
            self._path.unlink(missing_ok=True)


class _Worker:
    """The transform of one partition."""

    def __init__(self, job: SnapshotJob, partition: Partition, copies: CountedCopies) -> None:
        table = partition.table
        relation = table.published.relation
        names = [column.name for column in relation.columns]
        program = bind_table(job.plan, job.source.tag, relation.schema, relation.name, names)
        if program is None:
            raise PartitionError("the rules do not use this table", table.published.qualified_name)
        convert = row_converter(relation.columns, job.types, job.plan.options)
        names = [definition.name for definition in job.plan.buckets]
        self._transform = TableTransform(table.table_id, job.salt, convert, program, names)
        self._identity = RowIdentity.of(relation)
        self._width = len(relation.columns)
        self._copies: Counter[str] = Counter(copies.before)

    def write(self, lines: list[str], part: StageFile) -> None:
        rows: list[CurrentRow] = []
        lookups: list[tuple[str, LookupEntry]] = []
        ops: list[DraftOp] = []
        buckets: dict[int, BucketName] = {}
        transform, width, row_id_of = self._transform, self._width, self._row_id
        convert, evaluate, enter = transform.convert, transform.program.evaluate, transform.enter
        for line in lines:
            cells = split_line(line, width)
            row_id = row_id_of(line, cells)
            puts, entries, _ = evaluate(convert(cells), row_id)
            members = enter(row_id, puts, ops, buckets)
            rows.append(_new_row(CurrentRow, (row_id, 0, line, members, None)))
            if entries:
                lookups += [(row_id, entry) for entry in entries]
        part.write(rows, lookups, ops, buckets)

    def _row_id(self, line: str, cells: tuple[str | None, ...]) -> str:
        kind = self._identity.kind
        if kind is IdentityKind.KEY:
            return self._identity.key(cells)
        if kind is IdentityKind.NOTHING:
            return random_id()
        content = content_id(line)
        self._copies[content] += 1
        return copy_id(content, self._copies[content])


_new_row: Callable[[type[CurrentRow], tuple[str, int, str, str, str | None]], CurrentRow] = tuple.__new__


def count_contents(job: SnapshotJob, partition: Partition) -> Counter[str]:
    """How often each row stands in the partition, by content."""
    counts: Counter[str] = Counter()
    for lines in read_lines(job, partition):
        counts.update(map(content_id, lines))
    return counts
