"""Taking over pages of additions: what existing rows produce for row sides that were not complete."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import CLEAR_BODY, finished_op
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.store import Lease
from headwater.storage.postgres.bulk.stage import stage_tables
from headwater.storage.postgres.bulk.takeover import check_part, check_there, lock_state, taken_keys
from headwater.storage.postgres.checkpoints import names_of
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.control.database import PostgresControl
from headwater.storage.postgres.copying import columns
from headwater.storage.postgres.migrate import read_secret
from headwater.storage.postgres.runs import INSERT_RUN, run_values
from headwater.storage.postgres.tables import rows_table, stored_id
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.control import moved_buckets
from headwater.storage.shared.pages import Openings, openings, without
from headwater.storage.shared.runs import Run

_ADD_MEMBERS = """
update {rows} r set members = case r.members when '' then p.members
    else left(r.members, -1) || ',' || substr(p.members, 2) end
from {part} p where p.page = {page} and p.members <> '' and r.row_id = p.row_id and p.row_id <> all(%s)
"""

_ADD_LOOKUPS = """
insert into lookups (key, table_id, row_id, output)
select distinct p.key, {table}, p.row_id, p.output from {part} p
where p.page = {page} and p.row_id <> all(%s) and not exists (
    select from lookups l where l.table_id = {table} and l.row_id = p.row_id and l.key = p.key and l.output = p.output)
"""


def take(connection: psycopg.Connection, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> None:
    """See the contract."""
    names = stage_tables(part.path)
    check_there(connection, part)
    with moved_buckets.moving(PostgresControl(connection), lease), leases.holding(connection, lease):
        next_op = lock_state(connection)
        skipped, left_out = _skipped(connection, part, page, skip)
        where = {"rows": rows_table(part.table), "table": part.table, "page": page}
        connection.execute(sql.SQL(_ADD_MEMBERS).format(part=names["rows"], **where), [skipped])
        connection.execute(sql.SQL(_ADD_LOOKUPS).format(part=names["lookups"], **where), [skipped])
        _append(connection, lease, part, page, next_op, left_out)
        connection.execute("select pg_notify(current_schema(), '')")
        failpoint("page.before_commit")
    failpoint("page.after_commit")


def _skipped(
    connection: psycopg.Connection, part: StagedPart, page: int, skip: Iterable[str]
) -> tuple[list[str], Openings]:
    """The rows to leave out, and how their ops begin."""
    query = sql.SQL(
        "select p.row_id, coalesce(p.long_id, p.row_id), p.members, p.subkey from {part} p left join {rows} r"
        " on r.row_id = p.row_id where p.page = {page} and (p.row_id = any(%s) or r.row_id is null)"
    ).format(part=stage_tables(part.path)["rows"], rows=rows_table(part.table), page=page)
    found = connection.execute(query, [[stored_id(row_id)[0] for row_id in skip]]).fetchall()
    return [row[0] for row in found], openings(
        (row[1:] for row in found), part.table, StoreKeys(read_secret(connection))
    )


def _append(
    connection: psycopg.Connection, lease: Lease, part: StagedPart, page: int, next_op: int, left_out: Openings
) -> None:
    """Number the page's segments after all existing ops, and move the checkpoint past them."""
    names = stage_tables(part.path)
    query = sql.SQL("select bucket, size, checksum, bodies from {} where page = {} order by bucket, id")
    given = connection.execute(query.format(names["segments"], page), binary=True).fetchall()
    rows = connection.execute(
        sql.SQL("select count(*) from {} where page = {}").format(names["rows"], page)
    ).fetchall()[0][0]
    check_part(connection, part, page, rows, sum(segment[1] for segment in given))
    filtered = [
        (bucket, *without((size, checksum, bodies), left_out.get(bucket, ())))
        for bucket, size, checksum, bodies in given
    ]
    kept = [segment for segment in filtered if segment[1]]
    touched = sorted({segment[0] for segment in kept})
    those = sql.SQL("(select id, name, definition from {} where id = any(%(keys)s))").format(names["buckets"])
    moved_buckets.refuse(connection.execute(taken_keys(those), {"keys": touched}))
    next_op = _open_buckets(connection, names["buckets"], touched, next_op)
    for segment in kept:
        bucket, size, checksum, bodies = segment
        _insert_segment(connection, Run(bucket, next_op, size, checksum, bodies))
        next_op += size
    named = names_of(connection, touched) if len(touched) <= NAMEABLE else None
    connection.execute("update state set next_op = %s, checkpoint = %s", [next_op + 1, next_op])
    connection.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
        " select %s, tag, lsn, 0, %s, null from sources where tag = %s",
        [next_op, named, lease.name],
    )


def _open_buckets(connection: psycopg.Connection, source: sql.Identifier, touched: list[int], next_op: int) -> int:
    """Create missing buckets, each beginning with a CLEAR. Returns the next op id."""
    named = connection.execute(
        sql.SQL(
            "select p.id, p.name, p.definition, b.name from {} p left join buckets b on b.id = p.id"
            " where p.id = any(%s::bigint[]) order by p.id"
        ).format(source),
        [touched],
    ).fetchall()
    fresh = [
        (key, name, definition, op, finished_op(op, CLEAR_BODY))
        for op, (key, name, definition, _) in enumerate((row for row in named if row[3] is None), next_op)
    ]
    connection.execute(
        "with fresh as (select * from unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[])"
        " as f (id, name, definition, op, line)), made as (insert into buckets"
        " (id, name, definition, checksum, count, clear_op, last_op)"
        " select id, name, definition, 0, 1, op, op from fresh)"
        " insert into ops (bucket, id, line) select id, op, line from fresh",
        columns(fresh, 5),
    )
    return next_op + len(fresh)


def _insert_segment(connection: psycopg.Connection, run: Run) -> None:
    connection.execute(INSERT_RUN, run_values(run))
    connection.execute(
        "update buckets set checksum = (checksum + %s) & 4294967295, count = count + %s, last_op = %s where id = %s",
        [run.checksum, run.size, run.last, run.bucket],
    )
