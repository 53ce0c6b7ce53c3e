"""What tasks of bulk jobs write, and how the store takes it over.

A task writes tables of its own, which the store takes over on the server later. They need no durability: a durable
table records how many rows they hold, and tables of a failed attempt are never used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence

import psycopg
from psycopg import errors, sql

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import CLEAR_BODY, finished_op
from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow, StagedPart, StagedTable
from headwater.storage.contract.store import Lease, PartLostError
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.copying import (
    INSERT_RUN,
    ROW_COLUMNS,
    columns,
    copy_lines,
    escaped,
    names_of,
    row_line,
    rows_table,
    run_values,
)
from headwater.storage.postgres.cursor import POSTGRES, PostgresCursor, stored_id
from headwater.storage.postgres.migrate import read_secret
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.pages import Openings, openings, without
from headwater.storage.shared.segments import Run, SegmentPacker
from headwater.storage.sql import bucket_keys as keyed
from headwater.storage.sql.bucket_keys import unseen
from headwater.storage.sql.cursor import Row
from headwater.storage.sql.retire import lock_state
from headwater_rules.results import LookupEntry

_SENT_BYTES = 8 << 20  # of segments, before they go to the server

KINDS = ("rows", "lookups", "buckets", "segments")

_TABLES = """
drop table if exists {rows}, {lookups}, {buckets}, {segments};
delete from staged_parts where path = {path};
create unlogged table {rows} (page integer, row_id text collate "C", layout integer, line text, members text,
    subkey text, long_id text);
create unlogged table {lookups} (page integer, key text, row_id text collate "C", output text);
create unlogged table {buckets} (id bigint, name text, definition text);
create unlogged table {segments} (id bigint generated always as identity, page integer, bucket bigint, size bigint,
    checksum bigint, bodies bytea);
alter table {segments} alter column bodies set storage external
"""


def stage_tables(path: str) -> dict[str, sql.Identifier]:
    """The tables of a part, by kind."""
    return {kind: sql.Identifier(f"{path}_{kind}") for kind in KINDS}


class StageTables:
    """The result of one attempt, see `storage.contract.parts.PartWriter`. Batches commit one by one, so that no
    transaction is open while the source is read."""

    def __init__(self, address: PostgresAddress, table: int, number: int, attempt: str) -> None:
        self._address = address
        self._table = table
        self._attempt = attempt
        self._path = f"stage_{table:d}_{number:d}_{re.sub(r'[^a-z0-9]', '_', attempt.lower())}"
        self._tables = stage_tables(self._path)
        self._packer = SegmentPacker(self._keep)
        self._segments: list[tuple[int, int, int, int, bytes]] = []
        self._segment_bytes = 0
        self._named: set[int] = set()
        self._page = 0
        self._counts: list[tuple[int, int]] = []  # rows and ops of each page that has ended
        self._rows = 0
        self._ops = 0
        self._finished = False
        self._db = connect(address, "bulk work")
        try:
            with postgres_errors(address):
                self._db.execute(sql.SQL(_TABLES).format(path=sql.Literal(self._path), **self._tables))
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> StageTables:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            # The connection may be what failed; `discard_staged` then drops what is left
            with contextlib.suppress(psycopg.Error):
                drop_part(self._db, self._path)
        self._db.close()

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[str, Bucket],
    ) -> None:
        page = self._page
        with postgres_errors(self._address):
            if rows:
                self._copy("rows", [f"{page}\t{row_line(row)}" for row in rows])
            if lookups:
                self._copy("lookups", [_lookup_line(page, row_id, entry) for row_id, entry in lookups])
            new = unseen(buckets, self._named)
            if new:
                self._copy("buckets", [f"{key}\t{escaped(name)}\t{escaped(of)}" for key, name, of in new])
            self._packer.add(ops)
        self._rows += len(rows)
        self._ops += len(ops)

    def end_page(self) -> None:
        with postgres_errors(self._address):
            self._end_page()

    def _end_page(self) -> None:
        self._packer.seal_all()
        self._send_segments()
        done = [sum(column) for column in zip(*self._counts, strict=True)] or [0, 0]
        self._counts.append((self._rows - done[0], self._ops - done[1]))
        self._page += 1

    def finish(self) -> StagedPart:
        pages = self._page
        with postgres_errors(self._address):
            if not pages:
                self._end_page()
            else:
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["rows"]))
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["lookups"]))
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["segments"]))
            self._db.execute(
                "insert into staged_parts (path, page, rows, ops)"
                " select %s, * from unnest(%s::int[], %s::bigint[], %s::bigint[])",
                [self._path, list(range(len(self._counts))), *map(list, zip(*self._counts, strict=True))],
            )
        self._finished = True
        return StagedPart(self._path, self._table, self._rows, self._ops, self._attempt, pages)

    def _copy(self, kind: str, lines: Sequence[str]) -> None:
        columns = {
            "rows": "(page, row_id, layout, line, members, subkey, long_id)",
            "lookups": "(page, key, row_id, output)",
            "buckets": "(id, name, definition)",
        }[kind]
        copy_lines(self._db, sql.SQL("copy {} {} from stdin").format(self._tables[kind], sql.SQL(columns)), lines)

    def _keep(self, bucket: int, size: int, checksum: int, blob: bytes) -> None:
        self._segments.append((self._page, bucket, size, checksum, blob))
        self._segment_bytes += len(blob)
        if self._segment_bytes > _SENT_BYTES:
            self._send_segments()

    def _send_segments(self) -> None:
        if not self._segments:
            return
        statement = sql.SQL("copy {} (page, bucket, size, checksum, bodies) from stdin (format binary)")
        with self._db.cursor() as cursor, cursor.copy(statement.format(self._tables["segments"])) as copy:
            copy.set_types(["int4", "int8", "int8", "int8", "bytea"])
            for segment in self._segments:
                copy.write_row(segment)
        self._segments, self._segment_bytes = [], 0


def _lookup_line(page: int, row_id: str, entry: LookupEntry) -> str:
    return f"{page}\t{escaped(entry.key)}\t{escaped(stored_id(row_id)[0])}\t{escaped(entry.output)}"


def drop_part(connection: psycopg.Connection, path: str) -> None:
    """Delete a part."""
    names = sql.SQL(", ").join(stage_tables(path).values())
    with connection.transaction():
        connection.execute(sql.SQL("drop table if exists {}").format(names))
        connection.execute("delete from staged_parts where path = %s", [path])


# taking over

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


def discard(db: PostgresCursor, lease: Lease) -> None:
    """Delete what unfinished jobs of the lease's source left: parts, staged generations, segments and names."""
    with db.holding(lease):
        owned = db.connection.execute(
            "select id, state = 'staged' from tables where source = %s order by id", [lease.name]
        ).fetchall()
    for path in _parts(db):
        table = int(path.split("_")[1])
        if (
            table in {row[0] for row in owned}
            or not db.connection.execute("select 1 from tables where id = %s", [table]).fetchall()
        ):
            drop_part(db.connection, path)
    staged = [row[0] for row in owned if row[1]]
    if not staged:
        return
    with db.holding(lease):
        db.connection.execute(
            "delete from segment_blobs where id in (select blob from staged_segments where table_id = any(%s))",
            [staged],
        )
        db.connection.execute("delete from staged_segments where table_id = any(%s)", [staged])
        db.connection.execute("delete from staged_buckets where table_id = any(%s)", [staged])
        db.connection.execute("update tables set state = 'dropped' where id = any(%s)", [staged])


def _parts(db: PostgresCursor) -> list[str]:
    """Paths of all parts that exist, even if only partly."""
    rows = db.connection.execute(
        r"select distinct substring(tablename from '^(stage_\d+_\d+_\w*)_(?:rows|lookups|buckets|segments)$')"
        " from pg_tables where schemaname = current_schema() and tablename ~ '^stage_[0-9]'"
        " union select path from staged_parts"
    )
    return sorted(row[0] for row in rows if row[0] is not None)


def check_there(db: PostgresCursor, part: StagedPart) -> None:
    """Raise PartLostError when a part is missing."""
    if not db.connection.execute("select 1 from staged_parts where path = %s", [part.path]).fetchall():
        raise PartLostError("a part of the bulk job is missing", part.path, _AGAIN)


def check_part(db: PostgresCursor, part: StagedPart, page: int, rows: int, ops: int) -> None:
    """Raise PartLostError when a page of a part does not hold what its task wrote."""
    row = db.connection.execute(
        "select rows, ops from staged_parts where path = %s and page = %s", [part.path, page]
    ).fetchone()
    if row is None or (row[0], row[1]) != (rows, ops):
        raise PartLostError("a part of the bulk job is damaged", part.path, _AGAIN)


def stage(db: PostgresCursor, lease: Lease, parts: Sequence[StagedPart]) -> None:
    """Move parts into the tables they are for. Nothing of it is visible."""
    for part in parts:
        names = stage_tables(part.path)
        check_there(db, part)
        with db.holding(lease):
            db.script(POSTGRES.plan_bulk)
            rows = _take_rows(db, part, sql.SQL("true"))
            db.connection.execute(
                sql.SQL(
                    "insert into staged_buckets (table_id, id, name, definition)"
                    " select {0}, id, name, definition from {1} p"
                    " where not exists (select from staged_buckets s"
                    " where s.table_id = {0} and s.id = p.id and s.name = p.name)"
                ).format(part.table, names["buckets"])
            )
            take = sql.SQL(_TAKE_SEGMENTS).format(segments=names["segments"], table=part.table)
            ops = db.connection.execute(take).fetchall()[0][0]
            check_part(db, part, 0, rows, int(ops))
        drop_part(db.connection, part.path)
        failpoint("stage.after_part")


def _take_rows(db: PostgresCursor, part: StagedPart, which: sql.Composable) -> int:
    """Take over rows of a part, and their lookups. Returns the number of rows."""
    names = stage_tables(part.path)
    rows = db.connection.execute(
        sql.SQL("insert into {} {} select row_id, layout, line, members, subkey, long_id from {} where {}").format(
            rows_table(part.table), ROW_COLUMNS, names["rows"], which
        )
    ).rowcount
    db.connection.execute(
        sql.SQL(
            "insert into lookups (key, table_id, row_id, output)"
            " select distinct key, {}, row_id, output from {} where {}"
        ).format(part.table, names["lookups"], which)
    )
    return rows


def stage_page(db: PostgresCursor, lease: Lease, part: StagedPart, page: int) -> bool:
    """See the contract."""
    check_there(db, part)
    try:
        with db.holding(lease):
            check_part(db, part, page, _take_rows(db, part, sql.SQL("page = {}").format(page)), 0)
    except errors.UniqueViolation:
        return False
    failpoint("stage.after_page")
    return True


def index_rows(db: PostgresCursor, lease: Lease, staged: Sequence[StagedTable]) -> bool:
    """Create the indexes that live replication needs on the rows of generations that lack them. Returns False when two
    rows have the same id."""
    try:
        for table in staged:
            with db.holding(lease):
                for statement in POSTGRES.index_rows:
                    db.connection.execute(statement.format(table=table.id).encode())
    except errors.UniqueViolation:
        return False
    return True


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


def taken_staged(db: PostgresCursor, ids: Sequence[int]) -> list[Row]:
    """The staged buckets that have the key of another one."""
    return db.connection.execute(taken_keys(_THOSE), {"tables": ids}).fetchall()


def number(db: PostgresCursor, ids: Sequence[int], next_op: int) -> int:
    """Give op ids to the staged segments of generations `ids`, and CLEARs to their buckets. Returns the next id."""
    bounds = {"next": next_op, "body": CLEAR_BODY, "tables": ids}
    next_op += db.connection.execute(_CLEAR_HELD, bounds).rowcount
    next_op += db.connection.execute(_MAKE_FRESH, {**bounds, "next": next_op}).rowcount
    total = db.connection.execute(_NUMBER_SEGMENTS, {"next": next_op, "tables": ids}).fetchall()[0][0]
    db.connection.execute("delete from staged_segments where table_id = any(%s)", [ids])
    db.connection.execute("delete from staged_buckets where table_id = any(%s)", [ids])
    return next_op + int(total)


# pages of additions: what existing rows produce for bucket definitions that were not complete

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


def take_page(db: PostgresCursor, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> None:
    """See the contract."""
    names = stage_tables(part.path)
    check_there(db, part)
    with keyed.moving(db, lease), db.holding(lease):
        next_op = lock_state(db)
        skipped, left_out = _skipped(db, part, page, skip)
        where = {"rows": rows_table(part.table), "table": part.table, "page": page}
        db.connection.execute(sql.SQL(_ADD_MEMBERS).format(part=names["rows"], **where), [skipped])
        db.connection.execute(sql.SQL(_ADD_LOOKUPS).format(part=names["lookups"], **where), [skipped])
        _append(db, lease, part, page, next_op, left_out)
        db.notify()
        failpoint("page.before_commit")
    failpoint("page.after_commit")


def _skipped(db: PostgresCursor, part: StagedPart, page: int, skip: Iterable[str]) -> tuple[list[str], Openings]:
    """The rows to leave out, and how their ops begin."""
    query = sql.SQL(
        "select p.row_id, coalesce(p.long_id, p.row_id), p.members, p.subkey from {part} p left join {rows} r"
        " on r.row_id = p.row_id where p.page = {page} and (p.row_id = any(%s) or r.row_id is null)"
    ).format(part=stage_tables(part.path)["rows"], rows=rows_table(part.table), page=page)
    found = db.connection.execute(query, [[stored_id(row_id)[0] for row_id in skip]]).fetchall()
    return [row[0] for row in found], openings(
        (row[1:] for row in found), part.table, StoreKeys(read_secret(db.connection))
    )


def _append(db: PostgresCursor, lease: Lease, part: StagedPart, page: int, next_op: int, left_out: Openings) -> None:
    """Number the page's segments after all existing ops, and move the checkpoint past them."""
    names = stage_tables(part.path)
    query = sql.SQL("select bucket, size, checksum, bodies from {} where page = {} order by bucket, id")
    given = db.connection.execute(query.format(names["segments"], page), binary=True).fetchall()
    rows = db.connection.execute(
        sql.SQL("select count(*) from {} where page = {}").format(names["rows"], page)
    ).fetchall()[0][0]
    check_part(db, part, page, rows, sum(segment[1] for segment in given))
    filtered = [
        (bucket, *without((size, checksum, bodies), left_out.get(bucket, ())))
        for bucket, size, checksum, bodies in given
    ]
    kept = [segment for segment in filtered if segment[1]]
    touched = sorted({segment[0] for segment in kept})
    those = sql.SQL("(select id, name, definition from {} where id = any(%(keys)s))").format(names["buckets"])
    keyed.refuse(db.connection.execute(taken_keys(those), {"keys": touched}))
    next_op = _open_buckets(db, names["buckets"], touched, next_op)
    for segment in kept:
        bucket, size, checksum, bodies = segment
        _insert_segment(db, Run(bucket, next_op, size, checksum, bodies))
        next_op += size
    named = names_of(db.connection, touched) if len(touched) <= NAMEABLE else None
    db.connection.execute("update state set next_op = %s, checkpoint = %s", [next_op + 1, next_op])
    db.connection.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
        " select %s, tag, lsn, 0, %s, null from sources where tag = %s",
        [next_op, named, lease.name],
    )


def _open_buckets(db: PostgresCursor, source: sql.Identifier, touched: list[int], next_op: int) -> int:
    """Create missing buckets, each beginning with a CLEAR. Returns the next op id."""
    named = db.connection.execute(
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
    db.connection.execute(
        "with fresh as (select * from unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[])"
        " as f (id, name, definition, op, line)), made as (insert into buckets"
        " (id, name, definition, checksum, count, clear_op, last_op)"
        " select id, name, definition, 0, 1, op, op from fresh)"
        " insert into ops (bucket, id, line) select id, op, line from fresh",
        columns(fresh, 5),
    )
    return next_op + len(fresh)


def _insert_segment(db: PostgresCursor, run: Run) -> None:
    db.connection.execute(INSERT_RUN, run_values(run))
    db.connection.execute(
        "update buckets set checksum = (checksum + %s) & 4294967295, count = count + %s, last_op = %s where id = %s",
        [run.checksum, run.size, run.last, run.bucket],
    )
