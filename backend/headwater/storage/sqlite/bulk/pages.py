"""Taking over pages of additions: what existing rows produce for row sides that were not complete."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import orjson

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.store import Lease, PartLostError
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.control import moved_buckets
from headwater.storage.shared.pages import Openings, openings, without
from headwater.storage.shared.runs import Run
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.bulk.takeover import attached, insert_clear, taken_keys
from headwater.storage.sqlite.control import lease as leases
from headwater.storage.sqlite.control.database import SqliteControl
from headwater.storage.sqlite.migrate import read_secret
from headwater.storage.sqlite.runs import insert_run


def take(connection: apsw.Connection, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> None:
    """See the contract."""
    with attached(connection, part):
        with moved_buckets.moving(SqliteControl(connection), lease), leases.holding(connection, lease):
            moved_buckets.refuse(connection.execute(_TAKEN, (page,)))
            left_out = _skipped(connection, part.table, page, skip)
            _add_members(connection, part.table, page)
            connection.execute(
                "insert or ignore into lookups (key, table_id, row_id, output) select key, ?1, row_id, output"
                " from part.lookups where page = ?2 and row_id not in (select row_id from temp.skipped)",
                (part.table, page),
            )
            _append(connection, lease, page, left_out)
            connection.execute("drop table temp.skipped")
            failpoint("page.before_commit")
        failpoint("page.after_commit")


_TAKEN = taken_keys(
    "(select b.* from part.buckets b join (select distinct bucket from part.segments where page = ?1) g"
    " on g.bucket = b.id)",
    "part.buckets",
)


def _skipped(connection: apsw.Connection, table: int, page: int, skip: Iterable[str]) -> Openings:
    """Record the rows to leave out in `temp.skipped`, and return how their ops begin."""
    connection.execute("create temp table skipped (row_id text primary key) without rowid")
    connection.executemany("insert or ignore into temp.skipped values (?)", [(row_id,) for row_id in skip])
    connection.execute(
        "insert or ignore into temp.skipped select p.row_id from part.rows p"
        f" left join rows_{table:d} r on r.row_id = p.row_id where p.page = ? and r.row_id is null",
        (page,),
    )
    sql = (
        "select p.row_id, p.members, p.subkey from part.rows p join temp.skipped s on s.row_id = p.row_id"
        " where p.page = ?"
    )
    rows = connection.execute(sql, (page,))
    return openings(
        ((str(row_id), str(members), None if origin is None else str(origin)) for row_id, members, origin in rows),
        table,
        StoreKeys(read_secret(connection)),
    )


def _add_members(connection: apsw.Connection, table: int, page: int) -> None:
    connection.execute(
        f"update rows_{table:d} as r set members = case r.members when '' then p.members"
        " else substr(r.members, 1, length(r.members) - 1) || ',' || substr(p.members, 2) end"
        " from part.rows p where p.page = ? and p.members <> '' and r.row_id = p.row_id"
        " and p.row_id not in (select row_id from temp.skipped)",
        (page,),
    )


def _append(connection: apsw.Connection, lease: Lease, page: int, left_out: Openings) -> None:
    """Number the page's segments after all existing ops, and move the checkpoint past them."""
    next_op = as_int(connection.execute("select next_op from state").fetchall()[0][0])
    touched: set[int] = set()
    sql = "select bucket, size, checksum, bodies from part.segments where page = ? order by bucket, id"
    for bucket, *segment in connection.execute(sql, (page,)).fetchall():
        size, checksum, bodies = segment
        if not (
            isinstance(bucket, int)
            and isinstance(size, int)
            and isinstance(checksum, int)
            and isinstance(bodies, bytes)
        ):
            raise PartLostError("a part of the bulk job is damaged", connection.filename, "the job starts over")
        kept = without((size, checksum, bodies), left_out.get(bucket, ()))
        if not kept[0]:
            continue
        if bucket not in touched:
            next_op = _open_bucket(connection, bucket, next_op)
            touched.add(bucket)
        _insert_segment(connection, Run(bucket, next_op, *kept))
        next_op += kept[0]
    names = orjson.dumps([row[0] for row in _names(connection, touched)]).decode() if len(touched) <= NAMEABLE else None
    connection.execute("update state set next_op = ?1 + 1, checkpoint = ?1", (next_op,))
    connection.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
        " select ?, tag, lsn, 0, ?, null from sources where tag = ?",
        (next_op, names, lease.name),
    )


def _names(connection: apsw.Connection, buckets: set[int]) -> Iterable[tuple[apsw.SQLiteValue, ...]]:
    return connection.executemany("select name from buckets where id = ?", [(bucket,) for bucket in sorted(buckets)])


def _open_bucket(connection: apsw.Connection, bucket: int, next_op: int) -> int:
    if connection.execute("select 1 from buckets where id = ?", (bucket,)).fetchone() is not None:
        return next_op
    name, definition = connection.execute(
        "select name, definition from part.buckets where id = ?", (bucket,)
    ).fetchall()[0]
    connection.execute(
        "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
        " values (?1, ?2, ?3, 0, 1, ?4, ?4)",
        (bucket, name, definition, next_op),
    )
    insert_clear(connection, next_op, bucket)
    return next_op + 1


def _insert_segment(connection: apsw.Connection, run: Run) -> None:
    insert_run(connection, run)
    connection.execute(
        "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = ? where id = ?",
        (run.checksum, run.size, run.last, run.bucket),
    )
