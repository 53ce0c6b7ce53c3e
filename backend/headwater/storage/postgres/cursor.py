"""The cursor and the dialect of a store in Postgres."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count as counting
from operator import itemgetter

import psycopg
from psycopg import pq

from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.compaction import Piece
from headwater.storage.contract.parts import CurrentRow, PlacedRow, Places, StagedPart, new_row
from headwater.storage.contract.store import Lease, part_lost
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.shared.common import batched
from headwater.storage.shared.compaction import HOT_BYTES, HOT_OPS
from headwater.storage.sql import leases
from headwater.storage.sql.bulk import take_flips, take_lookups, take_rows
from headwater.storage.sql.cursor import Cursor, Dialect, OpenPart, Row, Value, named

_LONGEST_ID = 500  # characters; an index entry has to stay below 2,700 bytes

LINE_APART = 8_000
"""Size in bytes above which a line is fetched separately, once there is room for it."""

_names = counting()

_SESSIONS = {
    "stats": "set enable_seqscan = on",
    "forget": "set enable_seqscan = on",
    # Everything is read once, so sequential scans are fastest
    "export": "set enable_seqscan = on; set idle_in_transaction_session_timeout = 0",
    "import": "set enable_seqscan = on",
    "history": "set idle_in_transaction_session_timeout = '1h'",
    "audit": "set idle_in_transaction_session_timeout = '1h'",
    "bulk work": "set idle_in_transaction_session_timeout = 0",  # evaluating rules over a batch may take long
}
"""Settings of connections, by purpose."""


def open_cursor(address: PostgresAddress, purpose: str) -> PostgresCursor:
    """A cursor on a connection of its own. Raises StoreError and StoreUnreachableError."""
    db = PostgresCursor(connect(address, purpose), address)
    if purpose in _SESSIONS:
        db.script(_SESSIONS[purpose])
    return db


class PostgresCursor:
    """See `storage.sql.cursor.Cursor`."""

    def __init__(self, connection: psycopg.Connection, address: PostgresAddress) -> None:
        self.connection = connection
        self.address = address
        self.dialect = POSTGRES

    @property
    def where(self) -> str:
        return str(self.address)

    @property
    def closed(self) -> bool:
        return self.connection.closed

    def rows(self, statement: str, *values: Value) -> list[Row]:
        with self.errors():
            return self.connection.execute(named(statement), _parameters(values)).fetchall()

    def one(self, statement: str, *values: Value) -> Row | None:
        with self.errors():
            return self.connection.execute(named(statement), _parameters(values)).fetchone()

    def execute(self, statement: str, *values: Value) -> int:
        with self.errors():
            return self.connection.execute(named(statement), _parameters(values)).rowcount

    def execute_many(self, statement: str, values: Iterable[Sequence[Value]]) -> list[Row]:
        found: list[Row] = []
        with self.errors(), self.connection.cursor() as cursor:
            cursor.executemany(named(statement), list(map(_parameters, values)), returning=True)
            more: bool | None = True
            while more:
                found += cursor.fetchall() if cursor.description is not None else []
                more = cursor.nextset()
        return found

    def script(self, text: str) -> None:
        with self.errors():
            self.connection.execute(text.encode())

    def has_table(self, name: str) -> bool:
        return self.rows("select to_regclass(quote_ident(current_schema()) || '.' || ?) is not null", name) == [(True,)]

    def stream(self, statement: str, *values: Value, at_once: int = 500) -> Iterator[Row]:
        idle = self.connection.info.transaction_status == pq.TransactionStatus.IDLE
        within: AbstractContextManager[object] = self.connection.transaction() if idle else nullcontext()
        with (
            self.errors(),
            within,
            self.connection.cursor(f"stream_{next(_names)}", binary=True) as cursor,
        ):
            cursor.itersize = at_once
            yield from cursor.execute(named(statement), _parameters(values))

    def errors(self) -> AbstractContextManager[None]:
        return postgres_errors(self.address)

    @contextmanager
    def transaction(self, lease: Lease | None = None) -> Iterator[None]:
        with self.errors(), self.connection.transaction():
            if lease is not None:
                leases.check(self, lease)
            yield
            if lease is not None:
                leases.extend(self, lease)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self.errors(), self.connection.transaction():
            self.connection.execute("set transaction isolation level repeatable read, read only")
            yield

    def sorting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def notify(self) -> None:
        self.execute("select pg_notify(current_schema(), '')")

    def close(self) -> None:
        self.connection.close()


def _parameters(values: Sequence[Value]) -> dict[str, object]:
    return {str(number): value for number, value in enumerate(values, 1)}


def stored_id(row_id: str) -> tuple[str, str | None]:
    """A row id as it is indexed, and the full id if that differs (None if not)."""
    if len(row_id) <= _LONGEST_ID:
        return row_id, None
    return f"{row_id[:100]}~{hashlib.blake2b(row_id.encode(), digest_size=32).hexdigest()}", row_id


def key_digest(key: str) -> bytes:
    """The indexed form of the key of a write checkpoint: user ids may be longer than an index entry can be."""
    return hashlib.blake2b(key.encode(), digest_size=24).digest()


def _placed_rows(
    db: Cursor, table: int, first: int, end: int, *, count: int, batch_bytes: int, damaged: bool = False
) -> Iterator[list[PlacedRow]]:
    """Lines that are large are fetched once there is room for them. Postgres has no damaged texts, or can't read
    them."""
    query = (
        f"select place, coalesce(long_id, row_id), layout, case when octet_length(line) <= {LINE_APART} then line end,"
        f" members, subkey, octet_length(line) from rows_{table:d} where place >= ? and place < ? order by place"
    )
    for batch in batched(db.stream(query, first, end, at_once=count), itemgetter(6), count, batch_bytes):
        yield _with_lines(db, table, batch)


def _with_lines(db: Cursor, table: int, rows: Sequence[Row]) -> list[PlacedRow]:
    apart = [row[0] for row in rows if row[3] is None]
    lines: dict[int, str] = {}
    if apart:
        lines = dict(db.rows(f"select place, line from rows_{table:d} where place = any(?)", apart))
    return [
        PlacedRow(place, new_row(CurrentRow, (row_id, layout, lines[place] if line is None else line, members, subkey)))
        for place, row_id, layout, line, members, subkey, _ in rows
    ]


def _place_ranges(db: Cursor, table: int, rows: int) -> Places:
    # Places have gaps of any size: every update of a row uses up one
    found = db.rows(
        "select place, number from (select place, row_number() over w as number, lead(place) over w as next"
        f" from rows_{table:d} window w as (order by place)) r"
        " where number % ?1 = 1 or ?1 = 1 or next is null order by place",
        rows,
    )
    if not found:
        return Places((), 0)
    last, count = found[-1]
    starts = [place for place, number in found if number % rows == 1 or rows == 1]
    return Places(tuple(zip(starts, [*starts[1:], last + 1], strict=True)), count)


# Buckets by the hashes of their names and the names. Of moved ones there are hardly ever any
_NAMED = """
select {0} from unnest(?1::bigint[], ?2::text[]) q (key, name) join lateral (
    select * from buckets b where b.id in (q.key, (select m.id from moved_buckets m where m.name = q.name))
    and b.name = q.name
) b using (name)
"""
_LOOKUPS = """
select l.key, l.output from unnest(?::text[]) k (key)
join lookups l on left(l.key, 500) = left(k.key, 500) and l.key = k.key
join tables t on t.id = l.table_id and t.state = 'active' order by l.table_id, l.row_id, l.output
"""

_OUTPUTS = """
select k.key, f.output from unnest(?::text[]) k (key) join lateral (
    select l.output from lookups l
    where left(l.key, 500) = left(k.key, 500) and l.key = k.key and l.table_id = any(?::bigint[]) limit ?
) f on true
"""


def _named_buckets(db: Cursor, columns: str, names: Mapping[str, int]) -> list[Row]:
    return db.rows(_NAMED.format(columns), list(names.values()), list(names))


_HOT = """
select min(id), max(id), count(*), cast(sum(length) as bigint) from (
    select id, length, (row_number() over (order by id) - 1) / ?4 as by_ops,
        sum(length) over (order by id) / ?5 as by_bytes
    from (select id, octet_length(line) as length from ops where bucket = ?1 and id between ?2 and ?3) found
) numbered group by by_ops, by_bytes order by 1
"""


def _hot_pieces(db: Cursor, bucket: int, first: int, upto: int) -> list[Piece]:
    rows = db.rows(_HOT, bucket, first, upto, HOT_OPS, HOT_BYTES)
    return [Piece(OpId(low), OpId(high), size, 0, False, length) for low, high, size, length in rows]


# parts of bulk jobs

KINDS = ("rows", "lookups", "buckets", "segments", "flips")


def part_tables(path: str) -> list[str]:
    """The names of a part's tables, in the order of KINDS, for statements."""
    return [f'"{path}_{kind}"' for kind in KINDS]


def drop_part(db: Cursor, path: str) -> None:
    """Delete a part."""
    with db.transaction():
        db.execute(f"drop table if exists {', '.join(part_tables(path))}")
        db.execute("delete from staged_parts where path = ?", path)


@contextmanager
def _open_part(db: Cursor, part: StagedPart) -> Iterator[OpenPart]:
    if db.one("select 1 from staged_parts where path = ? limit 1", part.path) is None:
        raise part_lost("missing", part.path)
    size = "select rows, ops from staged_parts where path = ? and page = ?"
    yield OpenPart(part, lambda page: db.one(size, part.path, page), *part_tables(part.path))


_STAGE_BUCKETS = """
insert into staged_buckets (table_id, id, name, definition) select {table}, id, name, definition from {part} p
where not exists (select from staged_buckets s where s.table_id = {table} and s.id = p.id and s.name = p.name)
"""
_STAGE_SEGMENTS = """
with moved as (
    insert into segment_blobs (bucket, size, checksum, bodies)
    select bucket, size, checksum, bodies from {part} order by id
    returning id, bucket, size, checksum
), noted as (
    insert into staged_segments (blob, table_id, bucket, size, checksum)
    select id, {table}, bucket, size, checksum from moved
)
select coalesce(sum(size), 0) from moved
"""


def _stage_part(db: Cursor, lease: Lease, opened: OpenPart) -> None:
    table = opened.part.table
    with db.transaction(lease):
        db.script(POSTGRES.plan_bulk)
        rows = take_rows(db, opened, "true")
        take_lookups(db, opened, "true")
        take_flips(db, opened, "true")
        db.execute(_STAGE_BUCKETS.format(table=table, part=opened.buckets))
        ((ops,),) = db.rows(_STAGE_SEGMENTS.format(table=table, part=opened.segments))
        opened.check(0, rows, int(ops))
    drop_part(db, opened.part.path)


def _file_sizes(_: Cursor, sizes: Mapping[str, int]) -> tuple[int, int]:
    return 0, sum(sizes.values())  # free space inside tables is left to Postgres' own statistics


_GUARDED = (
    *("leases", "versions", "requests", "revocations", "changes", "cases"),
    *("sources", "state", "write_checkpoints", "write_state"),
)

_REFUSE = """
create function refuse_write() returns trigger language plpgsql as
$$ begin raise exception using errcode = 'HWSEA', message = '{message}'; end $$
"""
_GUARD = "create trigger sealed before insert or update on {table} for each row execute function refuse_write()"

OWN_TABLES = "relnamespace = current_schema()::regnamespace and relkind = 'r'"

POSTGRES = Dialect(
    now="extract(epoch from clock_timestamp())::double precision",
    clock="clock_timestamp()",
    clock_after="clock_timestamp() + make_interval(secs => {})",
    clock_zero="'-infinity'",
    for_update=" for update",
    sessions="select pid, pid || ' ' || extract(epoch from backend_start) as name from pg_stat_activity",
    change_counter="select number from inbox",
    raise_change_counter="update inbox set number = number + 1",
    plan_bulk="set local enable_seqscan = on",
    among="= any(?)",
    contains="strpos({}, ?) > 0",
    as_bytes="convert_to({}, getdatabaseencoding())",
    place="place",
    stored_row_id=lambda row_id: stored_id(row_id)[0],
    op_key="bucket, id",
    segment_key="last_op",
    segments_after="s.bucket = ?1 and s.last_op > ?2",
    write_key="digest",
    stored_write_key=key_digest,
    # In the words of the index write_checkpoints_user
    clients_of="left(split_part(w.key, '/', 1), 500) = left(?1, 500) and starts_with(w.key, ?1 || '/')",
    named_buckets=_named_buckets,
    lookups_under=lambda db, keys: db.rows(_LOOKUPS, list(keys)),
    outputs_under=lambda db, tables, keys, most: db.rows(_OUTPUTS, list(keys), list(tables), most),
    has_key="left(l.key, 500) = left(?1, 500) and l.key = ?1",
    create_rows="""
        create table rows_{table:d} (
            place   bigint generated always as identity,
            row_id  text collate "C" not null,
            layout  integer not null,
            line    text collate "C" not null,
            members text not null,
            subkey  text,
            long_id text
        ) with (fillfactor = 90)
    """,
    index_rows=(
        "create unique index if not exists rows_{table:d}_id on rows_{table:d} (row_id)",
        "create unique index if not exists rows_{table:d}_place on rows_{table:d} (place)",
        "analyze rows_{table:d}",
    ),
    drop_generation=("update tables set state = 'dropped' where id = {table:d}",),
    row_columns="row_id, layout, line, members, subkey, long_id",
    whole_row_id="coalesce({0}.long_id, {0}.row_id)",
    placed_rows=_placed_rows,
    place_ranges=_place_ranges,
    hot_pieces=_hot_pieces,
    # Ids are never given out again, even those of deleted versions and generations: the sequences know the last ones
    archived_state="""
        select (select value from meta where key = 'secret'), next_op, checkpoint, config,
            (select last_value - (not is_called)::int from tables_id_seq),
            (select last_value - (not is_called)::int from versions_id_seq),
            (select seq from write_state)
        from state
    """,
    # A lookup's keys begin with its name and `[`; the backslash sorts right after `[`
    retire_lookups="""
        delete from lookups where ctid = any(array(
            select l.ctid from definitions s join lookups l on left(l.key, 500) >= (s.name || '[') collate "C"
                and left(l.key, 500) < (s.name || '\\') collate "C"
                join tables t on t.id = l.table_id and t.source = s.source
            where s.source = ?1 and s.state = 'retiring' limit ?2))
    """,
    strip_members="""
        update rows_{table:d} r set members = coalesce((
            select '[' || string_agg(m.member::text, ',' order by m.number) || ']'
            from json_array_elements(r.members::json) with ordinality m (member, number)
            where (m.member->0)::text::bigint not in (select id from retired_buckets)), '')
        where place >= ?1 and place < ?2 and exists (
            select from json_array_elements(nullif(r.members, '')::json) m (member)
            join retired_buckets b on b.id = (m.member->0)::text::bigint)
    """,
    open_part=_open_part,
    stage_part=_stage_part,
    take_lookups="""
        insert into lookups (key, table_id, row_id, output)
        select distinct p.key, {table}, p.row_id, p.output from {part} p where {condition}
    """,
    staged_for="table_id = any('{{{}}}')",
    join_all="join",
    live_memberships="""
        select (m.member ->> 0)::bigint, count(*)
        from rows_{table:d} r, json_array_elements(nullif(r.members, '')::json) m (member)
        where json_array_length(m.member) < 5 group by 1
    """,
    large_rows="""
        select coalesce(long_id, row_id), left(line, 200), case when strpos(members, ?1) > 0 then members else '' end
        from rows_{table:d} where starts_with(line, '\\!') or strpos(members, ?1) > 0
    """,
    table_sizes=f"select relname, pg_total_relation_size(oid) from pg_class where {OWN_TABLES}",
    file_sizes=_file_sizes,
    text_columns="""
        select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and a.attnum > 0
            and not a.attisdropped and a.atttypid = 'text'::regtype
            and c.relname <> 'ops' and c.relname not like 'stage\\_%'
        order by c.relname, a.attnum
    """,
    staged=f"""
        select exists (select 1 from tables where state = 'staged') or exists (select 1 from staged_segments)
            or exists (select 1 from staged_parts) or exists (select 1 from staged_buckets)
            or exists (select 1 from pg_class where {OWN_TABLES} and relname like 'stage\\_%')
    """,
    lock_leases="lock table leases in exclusive mode",
    seal=(("meta", _REFUSE), *((table, _GUARD.format(table=table)) for table in _GUARDED)),
    unseal=("drop function if exists refuse_write() cascade",),
)
