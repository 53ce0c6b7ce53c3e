"""The cursor and the dialect of the embedded store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson

from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import Piece
from headwater.storage.contract.parts import CurrentRow, PlacedRow, Places, StagedPart, new_row
from headwater.storage.contract.store import Lease, StoreError, part_lost
from headwater.storage.shared.common import batched
from headwater.storage.shared.compaction import HOT_BYTES, HOT_OPS
from headwater.storage.sql import leases
from headwater.storage.sql.bulk import take_flips, take_lookups, take_rows
from headwater.storage.sql.cursor import Cursor, Dialect, OpenPart, Row, Value
from headwater.storage.sqlite.connection import immediate, open_writer, reading, sorting, sqlite_errors

AFTER = """s.bucket = ?1 and s.last_op > ?2
and s.first_op >= coalesce((select max(first_op) from segments where bucket = ?1 and first_op <= ?2), 0)"""
"""The condition for segments `s` of a bucket (?1) that go beyond an op (?2). They are indexed by their first op:
without the second part, each look would walk through all segments of the bucket."""

ROWS_TABLE = """
create table rows_{table:d} (
    id      integer primary key,
    row_id  text not null,
    layout  integer not null,
    line    text not null,
    members text not null,
    subkey  text
) strict
"""

ROWS_INDEX = "create unique index if not exists rows_{table:d}_row_id on rows_{table:d} (row_id)"


WRITES = "write_checkpoints.db"

_WRITES_SCHEMA = """
create table if not exists write_checkpoints (
    key          text primary key,
    id           integer not null,
    lsns         text not null,
    seq          integer not null,
    requested_at real  -- seconds since 1970, of an id that the client chose
) strict, without rowid;
create index if not exists write_checkpoints_seq on write_checkpoints (seq);
create table if not exists write_state (
    id  integer primary key check (id = 1),
    seq integer not null  -- the last one that was given out, whatever is gone since
) strict;
insert or ignore into write_state values (1, 0);
"""


def open_writes(directory: Path, wake: Callable[[], None] = lambda: None) -> SqliteCursor:
    """The write checkpoints of a store, which have a file of their own, made if there is none."""
    db = SqliteCursor(open_writer(directory / WRITES), wake)
    with db.transaction():  # other processes may be at the same
        db.script(_WRITES_SCHEMA)
    return db


def attach_writes(db: SqliteCursor) -> None:
    """Make the tables of write checkpoints visible to a connection of the store's main file."""
    open_writes(db.path.parent).close()  # creates them
    db.execute("attach database ? as write_checkpoints", str(db.path.parent / WRITES))


class SqliteCursor:
    """See `storage.sql.cursor.Cursor`. After a transaction that notified readers, calls `wake`; `close` when
    it is closed."""

    def __init__(
        self,
        connection: apsw.Connection,
        wake: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.connection = connection
        self.path = Path(connection.filename)
        self.where = str(self.path)
        self.dialect = SQLITE
        self.closed = False
        self._wake = wake
        self._close = close
        self._notified = False

    def rows(self, statement: str, *values: Value) -> list[Row]:
        with self.errors():
            return self.connection.execute(statement, _bindings(values)).fetchall()

    def one(self, statement: str, *values: Value) -> Row | None:
        with self.errors():
            return self.connection.execute(statement, _bindings(values)).fetchone()

    def execute(self, statement: str, *values: Value) -> int:
        with self.errors():
            self.connection.execute(statement, _bindings(values)).fetchall()
            return self.connection.changes()

    def execute_many(self, statement: str, values: Iterable[Sequence[Value]]) -> list[Row]:
        with self.errors():
            return self.connection.executemany(statement, map(_bindings, values)).fetchall()

    def script(self, text: str) -> None:
        with self.errors():
            self.connection.execute(text).fetchall()

    def has_table(self, name: str) -> bool:
        return self.one("select 1 from sqlite_master where type = 'table' and name = ?", name) is not None

    def stream(self, statement: str, *values: Value, at_once: int = 500) -> Iterator[Row]:
        with self.errors():
            yield from self.connection.execute(statement, _bindings(values))

    def errors(self) -> AbstractContextManager[None]:
        return sqlite_errors(self.path)

    @contextmanager
    def transaction(self, lease: Lease | None = None) -> Iterator[None]:
        self._notified = False
        with self.errors(), immediate(self.connection):
            if lease is not None:
                leases.check(self, lease)
            yield
            if lease is not None:
                leases.extend(self, lease)
        if self._notified:
            self._wake()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self.errors(), reading(self.connection):
            yield

    @contextmanager
    def sorting(self) -> Iterator[None]:
        with self.errors(), sorting(self.connection):
            yield

    def notify(self) -> None:
        self._notified = True

    def close(self) -> None:
        self.closed = True
        self.connection.close()
        self._close()


def _bindings(values: Sequence[Value]) -> tuple[Any, ...]:
    return tuple(orjson.dumps(value).decode() if isinstance(value, list) else value for value in values)


def _placed_rows(
    db: Cursor, table: int, first: int, end: int, *, count: int, batch_bytes: int, damaged: bool = False
) -> Iterator[list[PlacedRow]]:
    texts = [f"cast({column} as blob)" if damaged else column for column in ("row_id", "line", "members")]
    row_id, line, members = texts
    columns = f"id, {row_id}, layout, {line}, {members}, subkey"
    rows = db.stream(f"select {columns} from rows_{table:d} where id >= ? and id < ? order by id", first, end)
    if damaged:
        rows = (
            tuple(each.decode(errors="replace") if isinstance(each, bytes) else each for each in row) for row in rows
        )
    for batch in batched(rows, lambda row: len(row[3]), count, batch_bytes):
        yield [PlacedRow(row[0], new_row(CurrentRow, row[1:])) for row in batch]


def _place_ranges(db: Cursor, table: int, rows: int) -> Places:
    """Unused places make a range hold fewer rows than asked for."""
    ((first, last, count),) = db.rows(f"select min(id), max(id), count(*) from rows_{table:d}")
    if not count:
        return Places((), 0)
    width = max(1, (last - first + 1) * rows // count)
    return Places(tuple((start, start + width) for start in range(first, last + 1, width)), count)


NAMED = "id in (?1, (select id from moved_buckets where name = ?2)) and name = ?2"
"""The condition that a bucket is the one with a name, given the hash of the name and the name."""

_LOOKUPS = """
select l.key, l.output from lookups l join tables t on t.id = l.table_id and t.state = 'active'
where l.key = ? order by l.table_id, l.row_id, l.output
"""


def _outputs_under(db: Cursor, tables: Sequence[int], keys: Sequence[str], most: int) -> list[Row]:
    among = ", ".join(map(str, map(int, tables)))
    query = f"select key, output from lookups where key = ? and table_id in ({among}) limit ?"
    return db.execute_many(query, [(key, most) for key in keys])


def _named_buckets(db: Cursor, columns: str, names: Mapping[str, int]) -> list[Row]:
    return db.execute_many(f"select {columns} from buckets where {NAMED}", [(key, name) for name, key in names.items()])


def _hot_pieces(db: Cursor, bucket: int, first: int, upto: int) -> list[Piece]:
    pieces: list[Piece] = []
    start = last = size = length = 0
    query = "select id, octet_length(line) from ops where bucket = ? and id >= ? and id <= ? order by id"
    for op_id, line in db.stream(query, bucket, first, upto):
        if size >= HOT_OPS or length >= HOT_BYTES:
            pieces.append(Piece(OpId(start), OpId(last), size, 0, False, length))
            size = length = 0
        last = op_id
        start = start if size else last
        size += 1
        length += line
    if size:
        pieces.append(Piece(OpId(start), OpId(last), size, 0, False, length))
    return pieces


# parts of bulk jobs

_ROWS_A_TRANSACTION = 50_000


@contextmanager
def _open_part(db: Cursor, part: StagedPart) -> Iterator[OpenPart]:
    """Attaches the part's file as the database `part`. Its damage is not taken for damage of the store."""
    if not Path(part.path).is_file():
        raise part_lost("missing", part.path)
    try:
        db.execute("attach database ? as part", part.path)
        try:
            yield OpenPart(part, None, "part.rows", "part.lookups", "part.buckets", "part.segments", "part.flips")
        finally:
            db.execute("detach database part")
    except StoreError as error:
        may_be_damage = isinstance(error.__cause__, apsw.CorruptError | apsw.NotADBError | apsw.SQLError)
        if not may_be_damage or _is_whole(part.path):
            raise
        raise part_lost("damaged", part.path) from error


def _is_whole(part: str) -> bool:
    """Whether a part's file is undamaged, as far as SQLite can tell."""
    try:
        with closing(apsw.Connection(part, flags=apsw.SQLITE_OPEN_READONLY)) as db:
            tables = db.execute("select count(*) from sqlite_master where type = 'table'").fetchall()
            return tables == [(5,)] and db.execute("pragma quick_check(1)").fetchall() == [("ok",)]
    except apsw.Error:
        return False


# The new ids are above all ids ever given out, in the order of the part
_STAGE_BLOBS = """
insert into segment_blobs (id, bucket, size, checksum, bodies)
select ?1 + id, bucket, size, checksum, bodies from part.segments order by id
"""
_STAGE_SEGMENTS = """
insert into staged_segments (blob, table_id, bucket, size, checksum)
select ?1 + id, ?2, bucket, size, checksum from part.segments
"""


def _stage_part(db: Cursor, lease: Lease, opened: OpenPart) -> None:
    ((last,),) = db.rows("select coalesce(max(id), 0) from part.rows")
    for first in range(1, last + 1, _ROWS_A_TRANSACTION):
        with db.transaction(lease):
            take_rows(db, opened, f"p.id >= {first:d} and p.id < {first + _ROWS_A_TRANSACTION:d}")
    with db.transaction(lease):
        take_lookups(db, opened, "true")
        take_flips(db, opened, "true")
        table = opened.part.table
        db.execute("insert or ignore into staged_buckets select ?, id, name, definition from part.buckets", table)
        ((base,),) = db.rows("select coalesce(max(seq), 0) from sqlite_sequence where name = 'segment_blobs'")
        db.execute(_STAGE_BLOBS, base)
        db.execute(_STAGE_SEGMENTS, base, table)


def _file_sizes(db: Cursor, _: Mapping[str, int]) -> tuple[int, int]:
    ((pages,),), ((page_size,),) = db.rows("pragma freelist_count"), db.rows("pragma page_size")
    files = Path(db.where).parent.glob("*.db*")
    return pages * page_size, sum(file.stat().st_size for file in files if file.is_file())


_NOW = "unixepoch('subsec')"

_GUARD = """
create trigger sealed_{table}_{event} before {event} on {table} begin select raise(abort, '{{message}}'); end
"""

# Opening the store tries to insert into `state`
_GUARDED = [
    (table, event)
    for table in ("leases", "versions", "requests", "changes", "cases", "sources", "state", "write_checkpoints")
    for event in ("insert", "update")
    if (table, event) != ("state", "insert")
]

SQLITE = Dialect(
    now=_NOW,
    clock=_NOW,
    clock_after=f"{_NOW} + {{}}",
    clock_zero="0",
    for_update="",  # a write transaction has the whole database
    sessions="",
    change_counter="select inbox from state",
    raise_change_counter="update state set inbox = inbox + 1",
    plan_bulk="",
    among="in (select value from json_each(?))",
    contains="instr({}, ?)",
    as_bytes="cast({} as blob)",
    place="id",
    stored_row_id=lambda row_id: row_id,
    op_key="id",
    segment_key="first_op",
    segments_after=AFTER,
    write_key="key",
    stored_write_key=lambda key: key,
    clients_of="w.key > ?1 || '/' and w.key < ?1 || '0'",  # keys of clients begin with `user/`, and "0" follows "/"
    named_buckets=_named_buckets,
    lookups_under=lambda db, keys: db.execute_many(_LOOKUPS, [(key,) for key in keys]),
    outputs_under=_outputs_under,
    has_key="l.key = ?1",
    create_rows=ROWS_TABLE,
    index_rows=(ROWS_INDEX,),
    drop_generation=(
        "drop table if exists rows_{table:d}",
        "delete from lookups where table_id = {table:d}",
        "delete from flips where table_id = {table:d}",
        "delete from tables where id = {table:d}",
    ),
    row_columns="row_id, layout, line, members, subkey",
    whole_row_id="{0}.row_id",
    placed_rows=_placed_rows,
    place_ranges=_place_ranges,
    hot_pieces=_hot_pieces,
    archived_state="""
        select (select lower(hex(value)) from meta where key = 'secret'), next_op, checkpoint, config,
            coalesce((select seq from sqlite_sequence where name = 'tables'), 0),
            coalesce((select seq from sqlite_sequence where name = 'versions'), 0),
            (select seq from write_state)
        from state
    """,
    # A lookup's keys begin with its name and `[`; the backslash sorts right after `[`
    retire_lookups="""
        delete from lookups where (key, table_id, row_id, output) in (
            select l.key, l.table_id, l.row_id, l.output
            from definitions s join lookups l on l.key >= s.name || '[' and l.key < s.name || '\\'
                join tables t on t.id = l.table_id and t.source = s.source
            where s.source = ?1 and s.state = 'retiring' limit ?2)
    """,
    strip_members="""
        update rows_{table:d} set members = coalesce(
            (select nullif(json_group_array(json(value)), '[]') from json_each(rows_{table:d}.members)
             where json_extract(value, '$[0]') not in (select id from retired_buckets)), '')
        where id >= ?1 and id < ?2 and members <> '' and exists
            (select 1 from json_each(rows_{table:d}.members)
             where json_extract(value, '$[0]') in (select id from retired_buckets))
    """,
    open_part=_open_part,
    stage_part=_stage_part,
    take_lookups="""
        insert or ignore into lookups (key, table_id, row_id, output)
        select p.key, {table}, p.row_id, p.output from {part} p where {condition}
    """,
    staged_for="table_id in ({})",
    join_all="cross join",
    live_memberships="""
        select json_extract(m.value, '$[0]'), count(*) from rows_{table:d} r, json_each(r.members) m
        where r.members <> '' and json_array_length(m.value) < 5 group by 1
    """,
    large_rows="""
        select row_id, line, members from rows_{table:d} where line >= '\\!' and line < '\\"' or instr(members, ?)
    """,
    table_sizes="""
        select m.tbl_name, sum(d.pgsize)
        from dbstat('main', 1) d join sqlite_master m on m.name = d.name group by m.tbl_name
    """,
    file_sizes=_file_sizes,
    text_columns="""
        select m.name, c.name from sqlite_master m, pragma_table_info(m.name) c
        where m.type = 'table' and m.name not like 'sqlite%' and c.type in ('TEXT', 'ANY', '') and m.name <> 'ops'
        order by m.name, c.cid
    """,
    staged="""
        select exists (select 1 from tables where state = 'staged') or exists (select 1 from staged_segments)
            or exists (select 1 from staged_buckets)
    """,
    lock_leases="",
    seal=tuple((table, _GUARD.format(table=table, event=event)) for table, event in _GUARDED),
    unseal=tuple(f"drop trigger if exists sealed_{table}_{event}" for table, event in _GUARDED),
)
