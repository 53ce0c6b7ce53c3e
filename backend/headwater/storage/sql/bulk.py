"""Taking over what tasks of bulk jobs wrote: whole parts of a snapshot, and pages of additions, which are what existing
rows produce for bucket definitions that were not complete. Numbers what was staged when it is published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import CLEAR_BODY, finished_op, put_opening
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import Bucket, decode_memberships
from headwater.storage.contract.parts import StagedPart, StagedTable
from headwater.storage.contract.store import Lease, part_lost
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.segments import Run, compressor, unpacked
from headwater.storage.sql import bucket_keys as keyed
from headwater.storage.sql import tables
from headwater.storage.sql.control import secret
from headwater.storage.sql.cursor import Cursor, DuplicateRowError, OpenPart, Row
from headwater.storage.sql.ops import ADD_OPS, INSERT_CLEARS, give_clears, insert_segments, lock_state, move_checkpoint
from headwater.storage.sql.parts import Segment

Openings = dict[int, tuple[str, ...]]
"""By bucket, how the bodies to be left out begin."""


def stage(db: Cursor, lease: Lease, parts: Sequence[StagedPart]) -> None:
    """See `StoreWriter.stage`."""
    for part in parts:
        with db.dialect.open_part(db, part) as opened:
            db.dialect.stage_part(db, lease, opened)
        failpoint("stage.after_part")


def stage_page(db: Cursor, lease: Lease, part: StagedPart, page: int) -> bool:
    """See `StoreWriter.stage_page`."""
    with db.dialect.open_part(db, part) as opened:
        try:
            with db.transaction(lease):
                opened.check(page, take_rows(db, opened, f"p.page = {page:d}"), 0)
                take_lookups(db, opened, f"p.page = {page:d}")
                take_flips(db, opened, f"p.page = {page:d}")
        except DuplicateRowError:
            return False
    failpoint("stage.after_page")
    return True


def take_rows(db: Cursor, part: OpenPart, condition: str) -> int:
    """Take over rows `p` of a part. Returns how many."""
    columns = db.dialect.row_columns
    return db.execute(f"insert into {part.current} ({columns}) select {columns} from {part.rows} p where {condition}")


def take_lookups(db: Cursor, part: OpenPart, condition: str, *values: Sequence[str]) -> None:
    """Take over lookups `p` of a part."""
    take = db.dialect.take_lookups.format(table=part.part.table, part=part.lookups, condition=condition)
    db.execute(take, *values)


_TAKE_FLIPS = """
insert into flips (table_id, row_id, at) select {table}, p.row_id, p.at from {part} p where {condition}
on conflict (table_id, row_id) do update set at = excluded.at where excluded.at < flips.at
"""


def take_flips(db: Cursor, part: OpenPart, condition: str, *values: Sequence[str]) -> None:
    """Take over flips `p` of a part. Of two for one row the earlier counts: each is of other bucket definitions."""
    db.execute(_TAKE_FLIPS.format(table=part.part.table, part=part.flips, condition=condition), *values)


def index_rows(db: Cursor, lease: Lease, staged: Sequence[StagedTable]) -> bool:
    """Create the indexes that live replication needs on the rows of generations that lack them. Returns False when two
    rows have the same id."""
    try:
        with db.sorting():
            for table in staged:
                with db.transaction(lease):
                    tables.index_rows(db, table.id)
    except DuplicateRowError:
        return False
    return True


# publishing


def taken_keys(some: str) -> str:
    """A query for those of `some` buckets, rows of (id, name, definition), that have the key of another one."""
    return (
        "with those as materialized"
        f" (select id, name, definition, min(name) over (partition by id) as first from {some} b)"
        " select distinct s.id, s.name, s.definition from those s where"
        " exists (select 1 from buckets o where o.id = s.id and o.name <> s.name)"
        " or exists (select 1 from retired_buckets o where o.id = s.id)"
        " or exists (select 1 from moved_buckets o where (o.id = s.id) <> (o.name = s.name))"
        " or s.name > s.first"
    )


def taken_staged(db: Cursor, staged: Sequence[StagedTable]) -> list[Row]:
    """The staged buckets that have the key of another one."""
    return db.rows(taken_keys(f"(select id, name, definition from staged_buckets where {_of_tables(db, staged)})"))


def _of_tables(db: Cursor, staged: Sequence[StagedTable]) -> str:
    return db.dialect.staged_for.format(", ".join(str(int(table.id)) for table in staged))


_MAKE_FRESH = """
insert into buckets (id, name, definition, checksum, count, clear_op, last_op)
select id, name, definition, 0, 1, op, op from (
    select id, name, definition, ?1 + row_number() over (order by id) - 1 as op from (
        select id, min(name) as name, min(definition) as definition from staged_buckets s
        where {staged} and not exists (select 1 from buckets b where b.id = s.id) group by id
    ) s
) f
"""
_PLACE_SEGMENTS = """
insert into segments (bucket, first_op, last_op, blob) select bucket, next - size, next - 1, blob from (
    select bucket, blob, size, cast(?1 + sum(size) over (order by bucket, blob) as bigint) as next
    from staged_segments where {staged}
) s
"""
_ADD_SEGMENTS = """
update buckets as b
set checksum = (b.checksum + s.checksum) & 4294967295, count = b.count + s.size, last_op = s.next - 1
from (
    select bucket, cast(sum(checksum) as bigint) as checksum, cast(sum(size) as bigint) as size,
        cast(?1 + sum(sum(size)) over (order by bucket) as bigint) as next
    from staged_segments where {staged} group by bucket
) s where b.id = s.bucket
"""


_NOT_OF_OTHERS = "definition not in (select name from definitions where source <> ?2 and state <> 'retired')"


def number(db: Cursor, source: str, staged: Sequence[StagedTable], next_op: int) -> int:
    """Give op ids to the staged segments of a source's generations, and CLEARs to all buckets but those of other
    sources. Returns the next id."""
    which = _of_tables(db, staged)
    first = next_op
    next_op += give_clears(db, next_op, _NOT_OF_OTHERS, source)
    next_op += db.execute(_MAKE_FRESH.format(staged=which), next_op)
    db.execute(INSERT_CLEARS, first, CLEAR_BODY)
    db.execute(_PLACE_SEGMENTS.format(staged=which), next_op)
    db.execute(_ADD_SEGMENTS.format(staged=which), next_op)
    total = db.rows(f"select coalesce(sum(size), 0) from staged_segments where {which}")[0][0]
    db.execute(f"delete from staged_segments where {which}")
    db.execute(f"delete from staged_buckets where {which}")
    return next_op + int(total)


# pages of additions

_ADD_MEMBERS = """
update {current} as r set members = case r.members when '' then p.members
    else substr(r.members, 1, length(r.members) - 1) || ',' || substr(p.members, 2) end
from {rows} p where p.page = ? and p.members <> '' and r.row_id = p.row_id and not p.row_id {among}
"""
_NEW_LOOKUPS = """
p.page = {page} and not p.row_id {among} and not exists (
    select 1 from lookups l
    where l.table_id = {table} and l.row_id = p.row_id and l.key = p.key and l.output = p.output
)
"""


def take_page(db: Cursor, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> None:
    """See `StoreWriter.take_page`."""
    among = db.dialect.among
    with db.dialect.open_part(db, part) as opened:
        with keyed.moving(db, lease), db.transaction(lease):
            next_op = lock_state(db)
            skipped, left_out = _skipped(db, opened, page, skip)
            add = _ADD_MEMBERS.format(current=opened.current, rows=opened.rows, among=among)
            db.execute(add, page, skipped)
            take_lookups(db, opened, _NEW_LOOKUPS.format(page=page, among=among, table=part.table), skipped)
            take_flips(db, opened, f"p.page = {page:d} and not p.row_id {among}", skipped)
            _append(db, lease, opened, page, next_op, left_out)
            db.notify()
            failpoint("page.before_commit")
        failpoint("page.after_commit")


def _skipped(db: Cursor, part: OpenPart, page: int, skip: Iterable[str]) -> tuple[list[str], Openings]:
    """The rows to leave out, and how their ops begin."""
    found = db.rows(
        f"select p.row_id, {db.dialect.whole_row_id.format('p')}, p.members, p.subkey from {part.rows} p"
        f" left join {part.current} r on r.row_id = p.row_id"
        f" where p.page = ? and (p.row_id {db.dialect.among} or r.row_id is null)",
        page,
        list(map(db.dialect.stored_row_id, skip)),
    )
    return [row[0] for row in found], _openings([row[1:] for row in found], part.part.table, StoreKeys(secret(db)))


def _openings(rows: Iterable[Row], table: int, keys: StoreKeys) -> Openings:
    """How the ops begin that a task made from rows of a table. Of each row: its id, its members, its subkey."""
    found: dict[int, list[str]] = {}
    for row_id, members, subkey in rows:
        for member in decode_memberships(members, row_id):
            sub = row_subkey(subkey, table, row_id, member.id, keys)
            found.setdefault(member.bucket, []).append(put_opening(member.table, member.id, sub, member.digest))
    return {bucket: tuple(starts) for bucket, starts in found.items()}


def _without(segment: Segment, left_out: Openings) -> Segment:
    """A segment without the bodies that are to be left out."""
    bucket, _, _, bodies = segment
    starts = left_out.get(bucket)
    if not starts:
        return segment
    kept = [body for body in unpacked(bodies).decode().split("\n") if not body.startswith(starts)]
    checksum = sum(int(orjson.loads("{" + body)["checksum"]) for body in kept)
    return bucket, len(kept), checksum & 0xFFFFFFFF, compressor(level=1).compress("\n".join(kept).encode())


def _append(db: Cursor, lease: Lease, part: OpenPart, page: int, next_op: int, left_out: Openings) -> None:
    """Number the page's segments after all existing ops, and move the checkpoint past them."""
    query = f"select bucket, size, checksum, bodies from {part.segments} where page = ? order by bucket, id"
    given: list[Segment] = []
    for bucket, size, checksum, bodies in list(db.stream(query, page)):
        if [type(bucket), type(size), type(checksum), type(bodies)] != [int, int, int, bytes]:
            raise part_lost("damaged", part.part.path)
        given.append((bucket, size, checksum, bodies))
    ((rows,),) = db.rows(f"select count(*) from {part.rows} where page = ?", page)
    part.check(page, rows, sum(segment[1] for segment in given))
    kept = [segment for each in given if (segment := _without(each, left_out))[1]]
    touched = sorted({segment[0] for segment in kept})
    those = f"(select id, name, definition from {part.buckets} where id {db.dialect.among})"
    keyed.refuse(db.rows(taken_keys(those), touched))
    named = [Bucket(*row) for row in db.rows(f"select * from {those} b order by id", touched)]
    next_op = _open_buckets(db, named, next_op)
    runs: list[Run] = []
    for segment in kept:
        runs.append(Run(segment[0], next_op, *segment[1:]))
        next_op = runs[-1].last + 1
    insert_segments(db, [(run.bucket, run) for run in runs])
    db.execute_many(ADD_OPS, [(run.checksum, run.size, run.last, run.bucket) for run in runs])
    names = orjson.dumps([bucket.name for bucket in named]).decode() if len(touched) <= NAMEABLE else None
    move_checkpoint(db, next_op, lease.name, names, None)


def _open_buckets(db: Cursor, buckets: Sequence[Bucket], next_op: int) -> int:
    """Create those that are missing, each beginning with a CLEAR. Returns the next op id."""
    known = {key for (key,) in db.rows(f"select id from buckets where id {db.dialect.among}", [b.key for b in buckets])}
    fresh = list(enumerate((bucket for bucket in buckets if bucket.key not in known), next_op))
    db.execute_many(
        "insert into buckets (id, name, definition, checksum, count, clear_op, last_op) values (?, ?, ?, 0, 1, ?, ?)",
        [(*bucket, op, op) for op, bucket in fresh],
    )
    clears = [(bucket.key, op, finished_op(op, CLEAR_BODY)) for op, bucket in fresh]
    db.execute_many("insert into ops (bucket, id, line) values (?, ?, ?)", clears)
    return next_op + len(fresh)
