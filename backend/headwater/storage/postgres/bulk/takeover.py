"""Taking over results of bulk jobs: staging them, and publishing them in a short transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from headwater.failpoints import failpoint
from headwater.oplog.change import Relation
from headwater.oplog.op import CLEAR_BODY
from headwater.storage.contract.parts import BulkRecord, StagedPart, StagedTable
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, PartLostError, SourceState
from headwater.storage.postgres import tables
from headwater.storage.postgres.bulk.stage import drop_part, stage_tables
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.control.database import PostgresControl
from headwater.storage.postgres.copying import ROW_COLUMNS
from headwater.storage.postgres.tables import rows_table
from headwater.storage.shared.control import moved_buckets, versions

_AGAIN = "the job starts over at the next attempt"

_TAKE_SEGMENTS = """
with moved as (
    insert into segment_blobs (bucket, size, checksum, bodies)
    select bucket, size, checksum, bodies from {segments} order by id
    returning id, bucket, size, checksum
), noted as (
    insert into staged_segments (blob, table_id, bucket, size, checksum)
    select id, {table}, bucket, size, checksum from moved
)
select coalesce(sum(size), 0) from moved
"""

# Buckets with history are emptied by a CLEAR; new ones begin with one
_CLEAR_HELD = """
with held as (
    select id, %(next)s + row_number() over (order by id) - 1 as op from buckets where last_op > clear_op
), cleared as (
    update buckets b set checksum = 0, count = 1, clear_op = held.op, last_op = held.op from held where b.id = held.id
)
insert into ops (bucket, id, line) select id, op, '{"op_id":"' || op || '",' || %(body)s from held
"""
_MAKE_FRESH = """
with fresh as (
    select id, name, definition, %(next)s + row_number() over (order by id) - 1 as op from (
        select distinct on (id) id, name, definition from staged_buckets s
        where table_id = any(%(tables)s) and not exists (select 1 from buckets b where b.id = s.id) order by id
    ) s
), made as (
    insert into buckets (id, name, definition, checksum, count, clear_op, last_op)
    select id, name, definition, 0, 1, op, op from fresh
)
insert into ops (bucket, id, line) select id, op, '{"op_id":"' || op || '",' || %(body)s from fresh
"""

_NUMBER_SEGMENTS = """
with numbered as materialized (
    select bucket, blob, size, checksum, %(next)s + upto - size as first_op, %(next)s + upto - 1 as last_op
    from (
        select bucket, blob, size, checksum, (sum(size) over (order by bucket, blob))::bigint as upto
        from staged_segments where table_id = any(%(tables)s)
    ) s
), placed as (
    insert into segments (bucket, first_op, last_op, blob) select bucket, first_op, last_op, blob from numbered
), added as (
    update buckets b set checksum = (b.checksum + s.checksum) & 4294967295, count = b.count + s.size,
        last_op = s.last_op
    from (
        select bucket, sum(checksum)::bigint as checksum, sum(size)::bigint as size, max(last_op) as last_op
        from numbered group by bucket
    ) s where b.id = s.bucket
)
select coalesce(sum(size), 0)::bigint from numbered
"""


BULK_PLANS = "set local enable_seqscan = on"
"""For statements that read whole tables; queries of live work use indexes only."""


def lock_state(connection: psycopg.Connection) -> int:
    """Take the store's lock, under which ops are numbered, until the commit. Returns the next op id."""
    return int(connection.execute("select next_op from state for update").fetchall()[0][0])


def discard(connection: psycopg.Connection, lease: Lease) -> None:
    """Delete what unfinished jobs of the lease's source left: parts, staged generations, segments and names."""
    with leases.holding(connection, lease):
        owned = connection.execute(
            "select id, state = 'staged' from tables where source = %s order by id", [lease.name]
        ).fetchall()
    for path in _parts(connection):
        table = int(path.split("_")[1])
        if (
            table in {row[0] for row in owned}
            or not connection.execute("select 1 from tables where id = %s", [table]).fetchall()
        ):
            drop_part(connection, path)
    staged = [row[0] for row in owned if row[1]]
    if not staged:
        return
    with leases.holding(connection, lease):
        connection.execute(
            "delete from segment_blobs where id in (select blob from staged_segments where table_id = any(%s))",
            [staged],
        )
        connection.execute("delete from staged_segments where table_id = any(%s)", [staged])
        connection.execute("delete from staged_buckets where table_id = any(%s)", [staged])
        connection.execute("update tables set state = 'dropped' where id = any(%s)", [staged])


def _parts(connection: psycopg.Connection) -> list[str]:
    """Paths of all parts that exist, even if only partly."""
    rows = connection.execute(
        r"select distinct substring(tablename from '^(stage_\d+_\d+_\w*)_(?:rows|lookups|buckets|segments)$')"
        " from pg_tables where schemaname = current_schema() and tablename ~ '^stage_[0-9]'"
        " union select path from staged_parts"
    )
    return sorted(row[0] for row in rows if row[0] is not None)


def make_tables(
    connection: psycopg.Connection,
    lease: Lease,
    source: str,
    relations: Sequence[tuple[Relation, str]],
    *,
    indexed: bool,
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


def check_there(connection: psycopg.Connection, part: StagedPart) -> None:
    """Raise PartLostError when a part is missing."""
    if not connection.execute("select 1 from staged_parts where path = %s", [part.path]).fetchall():
        raise PartLostError("a part of the bulk job is missing", part.path, _AGAIN)


def check_part(connection: psycopg.Connection, part: StagedPart, page: int, rows: int, ops: int) -> None:
    """Raise PartLostError when a page of a part does not hold what its task wrote."""
    row = connection.execute(
        "select rows, ops from staged_parts where path = %s and page = %s", [part.path, page]
    ).fetchone()
    if row is None or (row[0], row[1]) != (rows, ops):
        raise PartLostError("a part of the bulk job is damaged", part.path, _AGAIN)


def stage(connection: psycopg.Connection, lease: Lease, parts: Sequence[StagedPart]) -> None:
    """Move parts into the tables they are for. Nothing of it is visible."""
    for part in parts:
        names = stage_tables(part.path)
        check_there(connection, part)
        with leases.holding(connection, lease):
            connection.execute(BULK_PLANS)
            rows = _take_rows(connection, part, sql.SQL("true"))
            connection.execute(
                sql.SQL(
                    "insert into staged_buckets (table_id, id, name, definition)"
                    " select {0}, id, name, definition from {1} p"
                    " where not exists (select from staged_buckets s"
                    " where s.table_id = {0} and s.id = p.id and s.name = p.name)"
                ).format(part.table, names["buckets"])
            )
            take = sql.SQL(_TAKE_SEGMENTS).format(segments=names["segments"], table=part.table)
            ops = connection.execute(take).fetchall()[0][0]
            check_part(connection, part, 0, rows, int(ops))
        drop_part(connection, part.path)
        failpoint("stage.after_part")


def _take_rows(connection: psycopg.Connection, part: StagedPart, which: sql.Composable) -> int:
    """Take over rows of a part, and their lookups. Returns the number of rows."""
    names = stage_tables(part.path)
    rows = connection.execute(
        sql.SQL("insert into {} {} select row_id, layout, line, members, subkey, long_id from {} where {}").format(
            rows_table(part.table), ROW_COLUMNS, names["rows"], which
        )
    ).rowcount
    connection.execute(
        sql.SQL(
            "insert into lookups (key, table_id, row_id, output)"
            " select distinct key, {}, row_id, output from {} where {}"
        ).format(part.table, names["lookups"], which)
    )
    return rows


def stage_page(connection: psycopg.Connection, lease: Lease, part: StagedPart, page: int) -> bool:
    """See the contract."""
    check_there(connection, part)
    try:
        with leases.holding(connection, lease):
            check_part(connection, part, page, _take_rows(connection, part, sql.SQL("page = {}").format(page)), 0)
    except psycopg.errors.UniqueViolation:
        return False
    failpoint("stage.after_page")
    return True


def index_rows(connection: psycopg.Connection, lease: Lease, staged: Sequence[StagedTable]) -> None:
    """Create the indexes that live replication needs on the rows of generations that lack them."""
    for table in staged:
        with leases.holding(connection, lease):
            tables.index_rows(connection, table.id)


def replace_table(
    connection: psycopg.Connection, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None
) -> bool:
    """See the contract."""
    try:
        index_rows(connection, lease, [staged])
    except psycopg.errors.UniqueViolation:
        return False
    with leases.holding(connection, lease):
        if not tables.replace_active(connection, table, staged.id, resync):
            return False
        # Outputs of lookups may depend on the row id, so readers must read them again
        op = lock_state(connection)
        connection.execute("update state set next_op = %s, checkpoint = %s", [op + 1, op])
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
            " select %s, tag, lsn, 0, '[]', null from sources where tag = %s",
            [op, lease.name],
        )
        connection.execute("select pg_notify(current_schema(), '')")
        failpoint("replace.before_commit")
    return True


def publish(
    connection: psycopg.Connection,
    lease: Lease,
    state: SourceState,
    staged: Sequence[StagedTable],
    version: int,
    sides: Mapping[str, str],
    record: BulkRecord,
) -> None:
    """See the contract. Clients see all of it at the commit, or nothing. Holds the store's lock for a time proportional
    to the number of buckets and segments."""
    with moved_buckets.moving(PostgresControl(connection), lease), leases.holding(connection, lease):
        connection.execute(BULK_PLANS)
        next_op = lock_state(connection)
        failpoint("publish.before_segments")
        ids = [table.id for table in staged]
        moved_buckets.refuse(connection.execute(taken_keys(_THOSE), {"tables": ids}))
        connection.execute("update tables set state = 'dropped' where source = %s and state = 'active'", [state.tag])
        connection.execute("update tables set state = 'active' where id = any(%s)", [ids])
        next_op += connection.execute(_CLEAR_HELD, {"next": next_op, "body": CLEAR_BODY}).rowcount
        fresh = {"next": next_op, "body": CLEAR_BODY, "tables": ids}
        next_op += connection.execute(_MAKE_FRESH, fresh).rowcount
        next_op = _number_segments(connection, next_op, ids)
        set_source(connection, state)
        versions.set_active(PostgresControl(connection), version)
        # All rows are new, and nothing of theirs exists for other row sides
        connection.execute("update sides set state = 'retiring'")
        versions.add_sides(PostgresControl(connection), sides)
        connection.execute("update state set next_op = %s, checkpoint = %s", [next_op + 1, next_op])
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us) values (%s, %s, %s, 0)",
            [next_op, state.tag, state.lsn],
        )
        note_job(connection, record)
        connection.execute("select pg_notify(current_schema(), '')")
        failpoint("publish.before_commit")
    failpoint("publish.after_commit")


_THOSE = sql.SQL("(select id, name, definition from staged_buckets where table_id = any(%(tables)s))")


def taken_keys(buckets: sql.Composable) -> sql.Composed:
    """A query for those of some `buckets`, rows of (id, name, definition), that have the key of another one."""
    return sql.SQL(
        "with those as materialized (select b.*, min(b.name) over (partition by b.id) as first from {} b)"
        " select distinct s.id, s.name, s.definition from those s where"
        " exists (select from buckets o where o.id = s.id and o.name <> s.name)"
        " or exists (select from retired_buckets o where o.id = s.id)"
        " or exists (select from moved_buckets o where (o.id = s.id) <> (o.name = s.name))"
        " or s.name > s.first"
    ).format(buckets)


def _number_segments(connection: psycopg.Connection, next_op: int, ids: Sequence[int]) -> int:
    """Number every staged segment, bucket by bucket. Returns the next op id."""
    total = connection.execute(_NUMBER_SEGMENTS, {"next": next_op, "tables": ids}).fetchall()[0][0]
    connection.execute("delete from staged_segments where table_id = any(%s)", [ids])
    connection.execute("delete from staged_buckets where table_id = any(%s)", [ids])
    return next_op + int(total)


def set_source(connection: psycopg.Connection, state: SourceState) -> None:
    """Within a transaction: set the position that the source is followed from."""
    connection.execute(
        "insert into sources (tag, lsn, slot, system_id, timeline) values (%s, %s, %s, %s, %s)"
        " on conflict (tag) do update set lsn = excluded.lsn, slot = excluded.slot, system_id = excluded.system_id,"
        " timeline = excluded.timeline",
        [state.tag, state.lsn, state.slot, state.system_id, state.timeline],
    )


def note_job(connection: psycopg.Connection, record: BulkRecord) -> None:
    """Record what a job did."""
    connection.execute(
        "insert into bulk_jobs (kind, source, application, tasks, rows, ops, started, finished)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s)",
        [
            record.kind, record.source, record.application, record.tasks, record.rows, record.ops,
            record.started, record.finished,
        ],
    )  # fmt: skip
