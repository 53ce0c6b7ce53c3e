"""The tasks of a snapshot: COPY a range of a table's pages, evaluate the rows, write a part.

Runs on executors and imports no pyspark. https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import pq, sql

from headwater.bulk.bound_table import bind
from headwater.bulk.contract import SnapshotJob, SnapshotTable, TableChangedError
from headwater.decode.copytext import key_cells, split_line, unreadable_cells
from headwater.decode.wire import not_utf8
from headwater.errors import HeadwaterError
from headwater.oplog.limits import (
    LEFT_OUT,
    REFUSED_NAMED,
    SURELY_A_ROW,
    is_stub,
    left_out_of,
    op_refused,
    read_stub,
    row_refused,
    stored_line,
)
from headwater.oplog.row_id import IdentityKind, RowIdentity, content_id, copy_id, random_id
from headwater.oplog.transform import Buckets, DraftOp
from headwater.pipeline.progress import TaskProgress
from headwater.source.catalog.leaves import Leaf
from headwater.source.catalog.published import PublishedTable, fingerprint_of
from headwater.source.connect import SourceSettings, connect, plan_once, source_errors, text_as_it_is
from headwater.source.slot import READERS
from headwater.storage.contract.parts import CurrentRow, PartWriter, StagedPart, new_row
from headwater.storage.open import open_backend
from headwater_rules.results import LookupEntry

_log = logging.getLogger(__name__)

BATCH_ROWS = 5_000
_LOCK_TIMEOUT = "set lock_timeout = '10s'"  # all other tables of the job wait meanwhile


class PartitionError(HeadwaterError):
    """A task could not read its range."""

    code = "HW_5101"


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of pages of one leaf: from `first` up to `end`, or without end for None."""

    table: SnapshotTable
    leaf: Leaf
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class CountedCopies:
    """How often rows of a table without key are in earlier partitions, by content: their numbers are used already."""

    before: Mapping[str, int] = field(default_factory=dict)


def read_lines(
    source: SourceSettings, snapshot: str, partition: Partition, left_out: Callable[[str], None] = _log.error
) -> Iterator[list[str]]:
    """The partition's rows as COPY text, in batches. Rows with text that is not UTF-8 are left out, and told to
    `left_out`. Raises TableChangedError when the table changed since the snapshot
    or meanwhile: after a rewrite or a TRUNCATE, the snapshot would show no rows, or rows in other ranges."""
    with connect(source, application_name=READERS) as conn:
        conn.execute(_LOCK_TIMEOUT)
        plan_once(conn)
        # Before the read, too: columns could be renamed and renamed back meanwhile
        _check_unchanged(conn, source, partition)
        conn.execute("begin transaction isolation level repeatable read read only")
        conn.execute(sql.SQL("set transaction snapshot {}").format(snapshot))
        try:
            with text_as_it_is(conn):
                yield from _copy(conn, partition, source.piece_bytes, left_out)
            _check_name(conn, partition)
        except (PartitionError, psycopg.Error):
            with contextlib.suppress(psycopg.Error):  # the first error is the one to raise
                conn.rollback()
                _check_unchanged(conn, source, partition)
            raise
        conn.execute("commit")  # to read the present catalog
        _check_unchanged(conn, source, partition)


def _check_name(conn: psycopg.Connection, partition: Partition) -> None:
    """Raise TableChangedError unless the name that was read is this table's, now and at the time of the snapshot: under
    another name, other rules may apply. The table is locked until the transaction ends, so it keeps its name."""
    leaf, root = partition.leaf, partition.table.published.relation
    name = sql.Identifier(leaf.schema, leaf.name).as_string(conn)
    if conn.execute("select %s::regclass::oid::int8", [name]).fetchall() != [(leaf.oid,)]:  # shows the present
        raise TableChangedError("another table has the name of one that is read", name, "it is read again")
    rows = conn.execute(  # shows the snapshot
        "select c.oid::int8, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = any(%s::oid[])",
        [[leaf.oid, root.oid]],
    ).fetchall()
    if set(rows) != {(leaf.oid, leaf.schema, leaf.name), (root.oid, root.schema, root.name)}:
        raise TableChangedError("a table had another name when the snapshot was taken", name, "it is read again")


def _check_unchanged(conn: psycopg.Connection, source: SourceSettings, partition: Partition) -> None:
    seen = partition.table.published
    if fingerprint_of(conn, source.publications, seen.relation.oid) != seen.fingerprint:
        raise TableChangedError(
            "a table was altered, rewritten or truncated during the snapshot", seen.qualified_name, "it is read again"
        )


def _copy(
    conn: psycopg.Connection, partition: Partition, piece: int, left_out: Callable[[str], None]
) -> Iterator[list[str]]:
    query = copy_query(partition).as_string(conn)
    pgconn = conn.pgconn
    result = pgconn.exec_(query.encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _unread(result.error_message, partition)
    # libpq returns one line a call; psycopg's Copy object would double the time for each
    get, lines, length = pgconn.get_copy_data, list[str](), 0
    while True:
        size, data = get(0)
        if size <= 0:
            break
        try:
            lines.append(str(data[: size - 1], "utf-8"))
        except UnicodeDecodeError:
            left_out(_not_utf8(bytes(data[: size - 1]), partition.table.published))
            continue
        length += size
        data = memoryview(b"")  # a large row is not kept twice while it is worked on
        if len(lines) >= BATCH_ROWS or length >= piece:
            yield lines
            lines, length = [], 0
    result = pgconn.get_result() or result
    message = pgconn.error_message
    while pgconn.get_result() is not None:
        pass  # else the connection does not accept another command
    if size == -2 or result.status != pq.ExecStatus.COMMAND_OK:
        raise _unread(message, partition)
    yield lines


def _not_utf8(line: bytes, table: PublishedTable) -> str:
    cells, bad = unreadable_cells(line)
    columns = table.relation.columns
    key = [cells[place] for place in RowIdentity.of(table.relation).columns]
    row = ", ".join(key) if len(key) < len(columns) else "without key"
    return not_utf8(table.qualified_name, row or "without key", ", ".join(columns[place].name for place in bad))


def _unread(message: bytes, partition: Partition) -> PartitionError:
    fix = "`headwater source status` lists missing rights; it is tried again"
    return PartitionError(_first_line(message), partition.table.published.qualified_name, fix)


def copy_query(partition: Partition) -> sql.Composed:
    """The COPY statement for a partition: the columns and rows that are published."""
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


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """Read, evaluate and write one partition."""

    partition: Partition
    copies: CountedCopies

    def run(self, job: SnapshotJob, number: int, attempt: str) -> StagedPart:
        worker = _Worker(job, self.partition, self.copies)
        with (
            source_errors(job.source),
            TaskProgress(job.directory, number, attempt) as progress,
            open_backend(job.store).open_part(self.partition.table.table_id, number, attempt) as part,
        ):
            for lines in read_lines(job.source, job.snapshot, self.partition, worker.refused.append):
                worker.write(lines, part)
                progress.add(len(lines))
            return replace(part.finish(), refused=tuple(worker.refused[:REFUSED_NAMED]))


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
    """Evaluates the rows of one partition."""

    def __init__(self, job: SnapshotJob, partition: Partition, copies: CountedCopies) -> None:
        table = partition.table
        relation = table.published.relation
        bound = bind([job.plan], job.source.tag, relation, job.types, table.table_id, job.keys)
        if bound is None:
            raise PartitionError("the rules do not use this table", table.published.qualified_name)
        self._transform = bound.transform
        self._identity = RowIdentity.of(relation)
        self._width = len(relation.columns)
        self._copies: Counter[str] = Counter(copies.before)
        self._table = table.published.qualified_name
        self.refused: list[str] = []  # rows and ops that are too large, in words

    def write(self, lines: list[str], part: PartWriter) -> None:
        rows: list[CurrentRow] = []
        lookups: list[tuple[str, LookupEntry]] = []
        ops: list[DraftOp] = []
        buckets: Buckets = {}
        write, width, row_id_of = self._transform.write, self._width, self._row_id
        for line in lines:
            if len(line) > SURELY_A_ROW and is_stub(stub := stored_line(line)):
                row_id = row_id_of(line, key_cells(line, width, self._identity.columns))
                self.refused.append(row_refused(self._table, row_id, read_stub(stub).size))
                rows.append(CurrentRow(row_id, 0, stub, "", None))
                continue
            cells = split_line(line, width)
            row_id = row_id_of(line, cells)
            members, entries, _ = write("", None, row_id, cells, ops, buckets)
            rows.append(new_row(CurrentRow, (row_id, 0, line, members, None)))
            if LEFT_OUT in members:
                self.refused += [op_refused(self._table, row_id, op.size) for op in left_out_of(members)]
            if entries:
                lookups += [(row_id, entry) for entry in entries]
        part.write(rows, lookups, ops, buckets)

    def _row_id(self, line: str, cells: Sequence[str | None]) -> str:
        kind = self._identity.kind
        if kind is IdentityKind.KEY:
            return self._identity.key(cells)
        if kind is IdentityKind.NOTHING:
            return random_id()
        content = content_id(line)
        self._copies[content] += 1
        return copy_id(content, self._copies[content])
