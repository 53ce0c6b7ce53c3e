"""What tasks of bulk jobs write, and how the store takes it over.

A task writes one file with rows, lookups and segments. The file needs no durability and no index: the file of a failed
attempt is never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import orjson

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import CLEAR_BODY, finished_op
from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import CurrentRow, StagedPart, StagedTable
from headwater.storage.contract.store import Lease, PartLostError
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.pages import Openings, openings, without
from headwater.storage.shared.segments import Run, SegmentPacker
from headwater.storage.shared.values import as_int
from headwater.storage.sql import bucket_keys as keyed
from headwater.storage.sql import tables
from headwater.storage.sql.bucket_keys import unseen
from headwater.storage.sqlite.connection import sorting, sqlite_errors
from headwater.storage.sqlite.cursor import ROWS_INDEX, SqliteCursor, insert_run
from headwater.storage.sqlite.migrate import read_secret
from headwater_rules.results import LookupEntry

_SCHEMA = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
create table rows (id integer primary key, page, row_id, layout, line, members, subkey);
create table lookups (page, key, row_id, output);
create table buckets (id, name, definition, primary key (id, name)) without rowid;
create table segments (id integer primary key, page, bucket, size, checksum, bodies);
"""


def is_whole(path: Path) -> bool:
    """Whether a part's file is undamaged, as far as SQLite can tell."""
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            tables = db.execute("select count(*) from sqlite_master where type = 'table'").fetchall()
            return tables == [(4,)] and db.execute("pragma quick_check(1)").fetchall() == [("ok",)]
    except apsw.Error:
        return False


class StageFile:
    """The result of one attempt, see `storage.contract.parts.PartWriter`. `finish` gives the file its final name."""

    def __init__(self, path: Path, table: int = 0, attempt: str = "0") -> None:
        self._path = path
        self._table = table
        self._attempt = attempt
        self._rows = 0
        self._page = 0
        self._unfinished = path.with_suffix(".unfinished")
        with sqlite_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.unlink(missing_ok=True)
            self._db = apsw.Connection(str(self._unfinished))
            self._db.execute(_SCHEMA).fetchall()
            self._db.execute("begin")
        self._packer = SegmentPacker(self._keep)
        self._named: set[int] = set()
        self.ops = 0

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._unfinished.unlink(missing_ok=True)

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[str, Bucket],
    ) -> None:
        page = self._page
        with sqlite_errors(self._path):
            self._db.executemany(
                f"insert into rows (page, row_id, layout, line, members, subkey) values ({page:d}, ?, ?, ?, ?, ?)", rows
            )
            self._rows += len(rows)
            if lookups:
                self._db.executemany(
                    f"insert into lookups values ({page:d}, ?, ?, ?)",
                    [(entry.key, row_id, entry.output) for row_id, entry in lookups],
                )
            self._name(buckets)
            self._packer.add(ops)
        self.ops += len(ops)

    def end_page(self) -> None:
        with sqlite_errors(self._path):
            self._packer.seal_all()
        self._page += 1

    def finish(self) -> StagedPart:
        with sqlite_errors(self._path):
            self._packer.seal_all()
            if self._page:
                self._db.execute("create index rows_page on rows (page)")
                self._db.execute("create index lookups_page on lookups (page)")
            self._db.execute("commit")
            self._db.close()
        self._unfinished.rename(self._path)
        return StagedPart(str(self._path), self._table, self._rows, self.ops, self._attempt, self._page)

    def _name(self, buckets: Mapping[str, Bucket]) -> None:
        self._db.executemany("insert into buckets values (?, ?, ?)", unseen(buckets, self._named))

    def _keep(self, bucket: int, size: int, checksum: int, blob: bytes) -> None:
        self._db.execute(
            "insert into segments (page, bucket, size, checksum, bodies) values (?, ?, ?, ?, ?)",
            (self._page, bucket, size, checksum, blob),
        )


# taking over

_ROWS_A_TRANSACTION = 50_000
_AGAIN = "the job starts over at the next attempt"


def discard(db: SqliteCursor, lease: Lease) -> None:
    """Drop staged generations, segments and names."""
    with db.holding(lease):
        staged = db.connection.execute("select id from tables where state = 'staged'").fetchall()
        for (table,) in staged:
            tables.drop_generation(db, as_int(table))
        db.connection.execute("delete from segment_blobs where id in (select blob from staged_segments)")
        db.connection.execute("delete from staged_segments")
        db.connection.execute("delete from staged_buckets")


def stage(db: SqliteCursor, lease: Lease, parts: Sequence[StagedPart]) -> None:
    """Copy parts in."""
    for part in parts:
        with attached(db, part):
            _stage_part(db, lease, part)
        failpoint("stage.after_part")


def stage_page(db: SqliteCursor, lease: Lease, part: StagedPart, page: int) -> bool:
    """See the contract."""
    with attached(db, part):
        try:
            with db.holding(lease):
                _take_rows(db, part.table, "page = ?", page)
                _take_lookups(db, part.table, "page = ?", page)
        except apsw.ConstraintError:
            return False
    failpoint("stage.after_page")
    return True


@contextmanager
def attached(db: SqliteCursor, part: StagedPart) -> Iterator[None]:
    """Attach the part's file as the database `part`. Raises PartLostError when the file is missing or damaged, so that
    this is not taken for damage of the store."""
    if not Path(part.path).is_file():
        raise PartLostError("a part of the bulk job is missing", part.path, _AGAIN)
    try:
        db.connection.execute("attach database ? as part", (part.path,))
        try:
            yield
        finally:
            db.connection.execute("detach database part")
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
        if is_whole(Path(part.path)):
            raise
        raise PartLostError("a part of the bulk job is damaged", part.path, _AGAIN) from error


def _stage_part(db: SqliteCursor, lease: Lease, part: StagedPart) -> None:
    last = as_int(db.connection.execute("select coalesce(max(id), 0) from part.rows").fetchall()[0][0])
    for first in range(1, last + 1, _ROWS_A_TRANSACTION):
        with db.holding(lease):
            _take_rows(db, part.table, "id >= ? and id < ?", first, first + _ROWS_A_TRANSACTION)
    with db.holding(lease):
        _take_lookups(db, part.table, "true")
        db.connection.execute("insert or ignore into staged_buckets select id, name, definition from part.buckets")
        _take_segments(db)


def _take_rows(db: SqliteCursor, table: int, which: str, *values: int) -> None:
    db.connection.execute(
        f"insert into rows_{table:d} (row_id, layout, line, members, subkey)"
        f" select row_id, layout, line, members, subkey from part.rows where {which}",
        values,
    )


def _take_lookups(db: SqliteCursor, table: int, which: str, *values: int) -> None:
    db.connection.execute(
        "insert or ignore into lookups (key, table_id, row_id, output)"
        f" select key, ?, row_id, output from part.lookups where {which}",
        (table, *values),
    )


def _take_segments(db: SqliteCursor) -> None:
    base = int(
        str(
            db.connection.execute(
                "select coalesce(max(seq), 0) from sqlite_sequence where name = 'segment_blobs'"
            ).fetchall()[0][0]
        )
    )
    # The new ids are above all ids ever given out, in the order of the part
    db.connection.execute(
        "insert into segment_blobs (id, bucket, size, checksum, bodies)"
        " select ?1 + id, bucket, size, checksum, bodies from part.segments order by id",
        (base,),
    )
    db.connection.execute(
        "insert into staged_segments (blob, bucket, size, checksum)"
        " select ?1 + id, bucket, size, checksum from part.segments",
        (base,),
    )


def index_rows(db: SqliteCursor, lease: Lease, staged: Sequence[StagedTable]) -> bool:
    """Create the index that live replication needs on the rows of generations that lack it. Returns False when two rows
    have the same id."""
    try:
        with sorting(db.connection):
            for table in staged:
                with db.holding(lease):
                    db.connection.execute(ROWS_INDEX.format(table=table.id))
    except apsw.ConstraintError:
        return False
    return True


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


def number(db: SqliteCursor, next_op: int) -> int:
    """Give op ids to the staged segments, and CLEARs to their buckets. Returns the next id."""
    return _number_segments(db, _clear_buckets(db, next_op))


def _clear_buckets(db: SqliteCursor, next_op: int) -> int:
    """Empty buckets with history by a CLEAR, and begin new ones with one. Returns the next op id."""
    held = db.connection.execute("select id from buckets where last_op > clear_op order by id").fetchall()
    fresh = db.connection.execute(
        "select s.id, s.name, s.definition, b.name"
        " from staged_buckets s left join buckets b on b.id = s.id order by s.id"
    ).fetchall()
    for (bucket,) in held:
        db.connection.execute(
            "update buckets set checksum = 0, count = 1, clear_op = ?1, last_op = ?1 where id = ?2", (next_op, bucket)
        )
        insert_clear(db, next_op, as_int(bucket))
        next_op += 1
    for bucket, name, definition, known in fresh:
        if known is None:
            db.connection.execute(
                "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
                " values (?, ?, ?, 0, 1, ?, ?)",
                (bucket, name, definition, next_op, next_op),
            )
            insert_clear(db, next_op, as_int(bucket))
            next_op += 1
    return next_op


def insert_clear(db: SqliteCursor, op_id: int, bucket: int) -> None:
    line = finished_op(op_id, CLEAR_BODY)
    db.connection.execute("insert into ops (id, bucket, line) values (?, ?, ?)", (op_id, bucket, line))


def _number_segments(db: SqliteCursor, next_op: int) -> int:
    """Number every staged segment, bucket by bucket. Returns the next op id."""
    db.connection.execute(
        "insert into segments (bucket, first_op, last_op, blob)"
        " select bucket, ?1 + upto - size, ?1 + upto - 1, blob"
        " from (select bucket, blob, size, sum(size) over (order by bucket, blob) as upto from staged_segments)",
        (next_op,),
    )
    db.connection.execute(
        "update buckets set checksum = (buckets.checksum + s.checksum) & 4294967295, count = buckets.count + s.size,"
        " last_op = s.last_op from (select t.bucket, sum(t.checksum) as checksum, sum(t.size) as size,"
        " max(g.last_op) as last_op from staged_segments t join segments g on g.bucket = t.bucket and g.blob = t.blob"
        " group by t.bucket) s where buckets.id = s.bucket"
    )
    total = as_int(db.connection.execute("select coalesce(sum(size), 0) from staged_segments").fetchall()[0][0])
    db.connection.execute("delete from staged_segments")
    db.connection.execute("delete from staged_buckets")
    return next_op + total


# pages of additions: what existing rows produce for bucket definitions that were not complete


def take_page(db: SqliteCursor, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> None:
    """See the contract."""
    with attached(db, part):
        with keyed.moving(db, lease), db.holding(lease):
            keyed.refuse(db.connection.execute(_TAKEN, (page,)))
            left_out = _skipped(db, part.table, page, skip)
            _add_members(db, part.table, page)
            db.connection.execute(
                "insert or ignore into lookups (key, table_id, row_id, output) select key, ?1, row_id, output"
                " from part.lookups where page = ?2 and row_id not in (select row_id from temp.skipped)",
                (part.table, page),
            )
            _append(db, lease, page, left_out)
            db.connection.execute("drop table temp.skipped")
            failpoint("page.before_commit")
        failpoint("page.after_commit")


_TAKEN = taken_keys(
    "(select b.* from part.buckets b join (select distinct bucket from part.segments where page = ?1) g"
    " on g.bucket = b.id)",
    "part.buckets",
)


def _skipped(db: SqliteCursor, table: int, page: int, skip: Iterable[str]) -> Openings:
    """Record the rows to leave out in `temp.skipped`, and return how their ops begin."""
    db.connection.execute("create temp table skipped (row_id text primary key) without rowid")
    db.connection.executemany("insert or ignore into temp.skipped values (?)", [(row_id,) for row_id in skip])
    db.connection.execute(
        "insert or ignore into temp.skipped select p.row_id from part.rows p"
        f" left join rows_{table:d} r on r.row_id = p.row_id where p.page = ? and r.row_id is null",
        (page,),
    )
    sql = (
        "select p.row_id, p.members, p.subkey from part.rows p join temp.skipped s on s.row_id = p.row_id"
        " where p.page = ?"
    )
    rows = db.connection.execute(sql, (page,))
    return openings(
        ((str(row_id), str(members), None if origin is None else str(origin)) for row_id, members, origin in rows),
        table,
        StoreKeys(read_secret(db.connection)),
    )


def _add_members(db: SqliteCursor, table: int, page: int) -> None:
    db.connection.execute(
        f"update rows_{table:d} as r set members = case r.members when '' then p.members"
        " else substr(r.members, 1, length(r.members) - 1) || ',' || substr(p.members, 2) end"
        " from part.rows p where p.page = ? and p.members <> '' and r.row_id = p.row_id"
        " and p.row_id not in (select row_id from temp.skipped)",
        (page,),
    )


def _append(db: SqliteCursor, lease: Lease, page: int, left_out: Openings) -> None:
    """Number the page's segments after all existing ops, and move the checkpoint past them."""
    next_op = as_int(db.connection.execute("select next_op from state").fetchall()[0][0])
    touched: set[int] = set()
    sql = "select bucket, size, checksum, bodies from part.segments where page = ? order by bucket, id"
    for bucket, *segment in db.connection.execute(sql, (page,)).fetchall():
        size, checksum, bodies = segment
        if not (
            isinstance(bucket, int)
            and isinstance(size, int)
            and isinstance(checksum, int)
            and isinstance(bodies, bytes)
        ):
            raise PartLostError("a part of the bulk job is damaged", db.where, "the job starts over")
        kept = without((size, checksum, bodies), left_out.get(bucket, ()))
        if not kept[0]:
            continue
        if bucket not in touched:
            next_op = _open_bucket(db, bucket, next_op)
            touched.add(bucket)
        _insert_segment(db, Run(bucket, next_op, *kept))
        next_op += kept[0]
    names = orjson.dumps([row[0] for row in _names(db, touched)]).decode() if len(touched) <= NAMEABLE else None
    db.connection.execute("update state set next_op = ?1 + 1, checkpoint = ?1", (next_op,))
    db.connection.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
        " select ?, tag, lsn, 0, ?, null from sources where tag = ?",
        (next_op, names, lease.name),
    )


def _names(db: SqliteCursor, buckets: set[int]) -> Iterable[tuple[apsw.SQLiteValue, ...]]:
    return db.connection.executemany("select name from buckets where id = ?", [(bucket,) for bucket in sorted(buckets)])


def _open_bucket(db: SqliteCursor, bucket: int, next_op: int) -> int:
    if db.connection.execute("select 1 from buckets where id = ?", (bucket,)).fetchone() is not None:
        return next_op
    name, definition = db.connection.execute(
        "select name, definition from part.buckets where id = ?", (bucket,)
    ).fetchall()[0]
    db.connection.execute(
        "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
        " values (?1, ?2, ?3, 0, 1, ?4, ?4)",
        (bucket, name, definition, next_op),
    )
    insert_clear(db, next_op, bucket)
    return next_op + 1


def _insert_segment(db: SqliteCursor, run: Run) -> None:
    insert_run(db.connection, run)
    db.connection.execute(
        "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = ? where id = ?",
        (run.checksum, run.size, run.last, run.bucket),
    )
