"""Taking over results of bulk jobs: staging them, and publishing them in a short transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from headwater.failpoints import failpoint
from headwater.oplog.change import Relation
from headwater.oplog.op import CLEAR_BODY, finished_op
from headwater.storage.contract.parts import BulkRecord, StagedPart, StagedTable
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, PartLostError, SourceState
from headwater.storage.shared.control import moved_buckets, versions
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite import tables
from headwater.storage.sqlite.bulk.stage import is_whole
from headwater.storage.sqlite.connection import sorting
from headwater.storage.sqlite.control import lease as leases
from headwater.storage.sqlite.control.database import SqliteControl

_ROWS_A_TRANSACTION = 50_000
_AGAIN = "the job starts over at the next attempt"


def discard(connection: apsw.Connection, lease: Lease) -> None:
    """Drop staged generations, segments and names."""
    with leases.holding(connection, lease):
        staged = connection.execute("select id from tables where state = 'staged'").fetchall()
        for (table,) in staged:
            tables.drop_generation(connection, as_int(table))
        connection.execute("delete from segment_blobs where id in (select blob from staged_segments)")
        connection.execute("delete from staged_segments")
        connection.execute("delete from staged_buckets")


def stage_tables(
    connection: apsw.Connection, lease: Lease, source: str, relations: Sequence[tuple[Relation, str]], *, indexed: bool
) -> list[StagedTable]:
    """Create generations for a bulk job to fill."""
    with leases.holding(connection, lease):
        staged = [
            StagedTable(tables.create_generation(connection, source, [relation], fingerprint, "staged"), relation)
            for relation, fingerprint in relations
        ]
    if indexed:
        index_rows(connection, lease, staged)
    return staged


def stage(connection: apsw.Connection, lease: Lease, parts: Sequence[StagedPart]) -> None:
    """Copy parts in."""
    for part in parts:
        with attached(connection, part):
            _stage_part(connection, lease, part)
        failpoint("stage.after_part")


def stage_page(connection: apsw.Connection, lease: Lease, part: StagedPart, page: int) -> bool:
    """See the contract."""
    with attached(connection, part):
        try:
            with leases.holding(connection, lease):
                _take_rows(connection, part.table, "page = ?", page)
                _take_lookups(connection, part.table, "page = ?", page)
        except apsw.ConstraintError:
            return False
    failpoint("stage.after_page")
    return True


@contextmanager
def attached(connection: apsw.Connection, part: StagedPart) -> Iterator[None]:
    """Attach the part's file as the database `part`. Raises PartLostError when the file is missing or damaged, so that
    this is not taken for damage of the store."""
    if not Path(part.path).is_file():
        raise PartLostError("a part of the bulk job is missing", part.path, _AGAIN)
    try:
        connection.execute("attach database ? as part", (part.path,))
        try:
            yield
        finally:
            connection.execute("detach database part")
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
        if is_whole(Path(part.path)):
            raise
        raise PartLostError("a part of the bulk job is damaged", part.path, _AGAIN) from error


def _stage_part(connection: apsw.Connection, lease: Lease, part: StagedPart) -> None:
    last = as_int(connection.execute("select coalesce(max(id), 0) from part.rows").fetchall()[0][0])
    for first in range(1, last + 1, _ROWS_A_TRANSACTION):
        with leases.holding(connection, lease):
            _take_rows(connection, part.table, "id >= ? and id < ?", first, first + _ROWS_A_TRANSACTION)
    with leases.holding(connection, lease):
        _take_lookups(connection, part.table, "true")
        connection.execute("insert or ignore into staged_buckets select id, name, definition from part.buckets")
        _take_segments(connection)


def _take_rows(connection: apsw.Connection, table: int, which: str, *values: int) -> None:
    connection.execute(
        f"insert into rows_{table:d} (row_id, layout, line, members, subkey)"
        f" select row_id, layout, line, members, subkey from part.rows where {which}",
        values,
    )


def _take_lookups(connection: apsw.Connection, table: int, which: str, *values: int) -> None:
    connection.execute(
        "insert or ignore into lookups (key, table_id, row_id, output)"
        f" select key, ?, row_id, output from part.lookups where {which}",
        (table, *values),
    )


def _take_segments(connection: apsw.Connection) -> None:
    base = int(
        str(
            connection.execute(
                "select coalesce(max(seq), 0) from sqlite_sequence where name = 'segment_blobs'"
            ).fetchall()[0][0]
        )
    )
    # The new ids are above all ids ever given out, in the order of the part
    connection.execute(
        "insert into segment_blobs (id, bucket, size, checksum, bodies)"
        " select ?1 + id, bucket, size, checksum, bodies from part.segments order by id",
        (base,),
    )
    connection.execute(
        "insert into staged_segments (blob, bucket, size, checksum)"
        " select ?1 + id, bucket, size, checksum from part.segments",
        (base,),
    )


def index_rows(connection: apsw.Connection, lease: Lease, staged: Sequence[StagedTable]) -> None:
    """Create the index that live replication needs on the rows of generations that lack it."""
    with sorting(connection):
        for table in staged:
            with leases.holding(connection, lease):
                connection.execute(tables.ROWS_INDEX.format(table.id))


def replace_table(
    connection: apsw.Connection, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None
) -> bool:
    """See the contract."""
    try:
        index_rows(connection, lease, [staged])
    except apsw.ConstraintError:
        return False
    with leases.holding(connection, lease):
        if not tables.replace_active(connection, table, staged.id, resync):
            return False
        # Outputs of lookups may depend on the row id, so readers must read them again
        next_op = as_int(connection.execute("select next_op from state").fetchall()[0][0])
        connection.execute("update state set next_op = ?, checkpoint = ?", (next_op + 1, next_op))
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
            " select ?, tag, lsn, 0, '[]', null from sources where tag = ?",
            (next_op, lease.name),
        )
        failpoint("replace.before_commit")
    return True


def publish(
    connection: apsw.Connection,
    lease: Lease,
    state: SourceState,
    staged: Sequence[StagedTable],
    version: int,
    sides: Mapping[str, str],
    record: BulkRecord,
) -> None:
    """See the contract. Clients see all of it at the commit, or nothing."""
    with moved_buckets.moving(SqliteControl(connection), lease), leases.holding(connection, lease):
        failpoint("publish.before_segments")
        moved_buckets.refuse(connection.execute(taken_keys("staged_buckets", "staged_buckets")))
        _replace_tables(connection, state.tag, staged)
        next_op = as_int(connection.execute("select next_op from state").fetchall()[0][0])
        next_op = _clear_buckets(connection, next_op)
        next_op = _number_segments(connection, next_op)
        set_source(connection, state)
        versions.set_active(SqliteControl(connection), version)
        # All rows are new, and nothing of theirs exists for other row sides
        connection.execute("update sides set state = 'retiring'")
        versions.add_sides(SqliteControl(connection), sides)
        connection.execute("update state set next_op = ?, checkpoint = ?", (next_op + 1, next_op))
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us) values (?, ?, ?, 0)",
            (next_op, state.tag, state.lsn),
        )
        note_job(connection, record)
        failpoint("publish.before_commit")
    failpoint("publish.after_commit")


def set_source(connection: apsw.Connection, state: SourceState) -> None:
    """Within a write transaction: set the position that the source is followed from."""
    connection.execute(
        "insert or replace into sources (tag, lsn, slot, system_id, timeline) values (?, ?, ?, ?, ?)",
        (state.tag, state.lsn, state.slot, state.system_id, state.timeline),
    )


def _replace_tables(connection: apsw.Connection, source: str, staged: Sequence[StagedTable]) -> None:
    for table in tables.load_tables(connection, source):
        tables.drop_generation(connection, table.id)
    connection.executemany("update tables set state = 'active' where id = ?", [(table.id,) for table in staged])


def taken_keys(some: str, beside: str) -> str:
    """A query for those of `some` buckets, rows of (id, name, definition), that have the key of another one, also of
    one in the table `beside`."""
    of_some = f"select s.id, s.name, s.definition from {some} s"
    return " union ".join((
        f"{of_some} join buckets o on o.id = s.id where o.name <> s.name",
        f"{of_some} join retired_buckets o on o.id = s.id",
        f"{of_some} join {beside} o on o.id = s.id where o.name < s.name",
        f"{of_some} join moved_buckets o on (o.id = s.id) <> (o.name = s.name)",
    ))  # fmt: skip


def _clear_buckets(connection: apsw.Connection, next_op: int) -> int:
    """Empty buckets with history by a CLEAR, and begin new ones with one. Returns the next op id."""
    held = connection.execute("select id from buckets where last_op > clear_op order by id").fetchall()
    fresh = connection.execute(
        "select s.id, s.name, s.definition, b.name"
        " from staged_buckets s left join buckets b on b.id = s.id order by s.id"
    ).fetchall()
    for (bucket,) in held:
        connection.execute(
            "update buckets set checksum = 0, count = 1, clear_op = ?1, last_op = ?1 where id = ?2", (next_op, bucket)
        )
        insert_clear(connection, next_op, as_int(bucket))
        next_op += 1
    for bucket, name, definition, known in fresh:
        if known is None:
            connection.execute(
                "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
                " values (?, ?, ?, 0, 1, ?, ?)",
                (bucket, name, definition, next_op, next_op),
            )
            insert_clear(connection, next_op, as_int(bucket))
            next_op += 1
    return next_op


def insert_clear(connection: apsw.Connection, op_id: int, bucket: int) -> None:
    line = finished_op(op_id, CLEAR_BODY)
    connection.execute("insert into ops (id, bucket, line) values (?, ?, ?)", (op_id, bucket, line))


def _number_segments(connection: apsw.Connection, next_op: int) -> int:
    """Number every staged segment, bucket by bucket. Returns the next op id."""
    connection.execute(
        "insert into segments (bucket, first_op, last_op, blob)"
        " select bucket, ?1 + upto - size, ?1 + upto - 1, blob"
        " from (select bucket, blob, size, sum(size) over (order by bucket, blob) as upto from staged_segments)",
        (next_op,),
    )
    connection.execute(
        "update buckets set checksum = (buckets.checksum + s.checksum) & 4294967295, count = buckets.count + s.size,"
        " last_op = s.last_op from (select t.bucket, sum(t.checksum) as checksum, sum(t.size) as size,"
        " max(g.last_op) as last_op from staged_segments t join segments g on g.bucket = t.bucket and g.blob = t.blob"
        " group by t.bucket) s where buckets.id = s.bucket"
    )
    total = as_int(connection.execute("select coalesce(sum(size), 0) from staged_segments").fetchall()[0][0])
    connection.execute("delete from staged_segments")
    connection.execute("delete from staged_buckets")
    return next_op + total


def note_job(connection: apsw.Connection, record: BulkRecord) -> None:
    """Within a write transaction: record what a job did."""
    connection.execute(
        "insert into bulk_jobs (kind, source, application, tasks, rows, ops, started, finished)"
        " values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.kind, record.source, record.application, record.tasks, record.rows, record.ops,
            record.started, record.finished,
        ),
    )  # fmt: skip
