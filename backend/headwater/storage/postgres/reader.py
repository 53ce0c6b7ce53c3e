"""The endpoint's side of a store in Postgres."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from typing import NamedTuple, TypeVar

import psycopg
from psycopg import sql

from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.compaction import LEASE as COMPACTION
from headwater.storage.contract.reader import (
    Checkpoint,
    Chunk,
    Listener,
    Newest,
    ReplicatorStatus,
    StoredConfig,
    StoreSnapshot,
)
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.postgres.connection import READER, Connections
from headwater.storage.postgres.cursor import POSTGRES, PostgresCursor
from headwater.storage.postgres.listen import NotifyListener
from headwater.storage.shared.common import CHUNK_BYTES, CHUNK_OPS
from headwater.storage.shared.segments import ChunkParts, unpacked
from headwater.storage.sql import control
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.leases import HELD_SINCE, is_gone
from headwater.storage.sql.reader import SqlReader, SqlSnapshot

_BEGIN = "begin transaction isolation level repeatable read read only"

_SNAPSHOT = """
{begin};
select v.id, v.yaml, s.checkpoint, ({own}), (select value from meta where key = 'secret')
from state s join versions v on v.id = s.config
where s.checkpoint is not null;
select tag, lsn from sources
"""

_NEWEST = """
select s.checkpoint, s.config, t.tag, t.lsn, ({own}), (select coalesce(max(seq), 0) from revocations)
from state s join versions v on v.id = s.config left join sources t on true where s.checkpoint is not null
"""

_REPLACED = """
select max(o.id) from versions o
where md5(o.yaml) = {digest} and o.stopped_at > extract(epoch from clock_timestamp()) - {seconds}
and o.state = 'stopped' and o.activated_at > 0 and o.origin = 'file' and v.origin = 'file'
"""

# The name of another role's session is null
_HEARD = f"""
select owner, expires_at > clock_timestamp(),
    expires_at > '-infinity' and flushing <> '' and exists (select 1 from ({POSTGRES.sessions}) s
        where coalesce(s.name = flushing, flushing like s.pid || ' %')),
    extract(epoch from clock_timestamp()), coalesce((select value from meta where key = ?2), ''),
    coalesce((select value from meta where key = ?3), '')
from leases where name = ?1
"""


def told_key(name: str) -> str:
    """The key under which the holder of a lease reports its status."""
    return f"told {name}"


_Result = TypeVar("_Result")


class PostgresReader(SqlReader):
    """See `storage.contract.reader.StoreReader`. A thread within a snapshot reads everything from that snapshot."""

    def __init__(self, address: PostgresAddress, own: OwnConfig | None) -> None:
        self._address = address
        self._own = own
        replaced: sql.Composable = sql.SQL("null::bigint")
        if own is not None:
            digest = hashlib.md5(own.yaml.encode(), usedforsecurity=False).hexdigest()
            replaced = sql.SQL(_REPLACED).format(digest=sql.Literal(digest), seconds=sql.Literal(own.keep_seconds))
        self._snapshot = sql.SQL(_SNAPSHOT).format(begin=sql.SQL(_BEGIN), own=replaced)
        self._newest = sql.SQL(_NEWEST).format(own=replaced)
        self._connections = Connections(address, READER)
        self._local = threading.local()
        with self._reading() as db:
            self._keys = StoreKeys(control.secret(db))
        self.newest()  # fails now rather than at the first request

    def _read(self, ask: Callable[[psycopg.Connection], _Result]) -> _Result:
        within: psycopg.Connection | None = getattr(self._local, "snapshot", None)
        if within is not None:
            return ask(within)
        with self._connections.lend() as connection:
            return ask(connection)

    @contextmanager
    def _reading(self) -> Iterator[Cursor]:
        within: psycopg.Connection | None = getattr(self._local, "snapshot", None)
        with self._connections.lend() if within is None else nullcontext(within) as connection:
            yield PostgresCursor(connection, self._address)

    _reading_writes = _reading

    @contextmanager
    def _writes(self) -> Iterator[Cursor]:
        with self._connections.lend() as connection:
            yield PostgresCursor(connection, self._address)

    @contextmanager
    def snapshot(self) -> Iterator[StoreSnapshot | None]:
        with self._connections.lend() as connection:
            cursor = connection.execute(self._snapshot)
            outer, self._local.snapshot = getattr(self._local, "snapshot", None), connection
            try:
                cursor.nextset()
                row = cursor.fetchone()
                cursor.nextset()
                if row is None:
                    yield None
                else:
                    checkpoint = Checkpoint(OpId(row[2]), {tag: Lsn(lsn) for tag, lsn in cursor})
                    own = self._still_served(connection, row[3])
                    if row[4] != self._keys.secret.hex():  # another store has taken the place of this one
                        self._keys = StoreKeys(bytes.fromhex(row[4]))
                    yield SqlSnapshot(
                        PostgresCursor(connection, self._address),
                        self._keys,
                        checkpoint,
                        own or StoredConfig(row[0], row[1]),
                    )
            finally:
                self._local.snapshot = outer
                _end(connection)

    def newest(self) -> Newest | None:
        rows = self._read(lambda db: db.execute(self._newest).fetchall())
        if not rows:
            return None
        own = self._read(lambda db: self._still_served(db, rows[0][4]))
        checkpoint = Checkpoint(OpId(rows[0][0]), {r[2]: Lsn(r[3]) for r in rows if r[2] is not None})
        return Newest(checkpoint, int(rows[0][1]) if own is None else own.id, int(rows[0][5]))

    def _still_served(self, db: psycopg.Connection, replaced: int | None) -> StoredConfig | None:
        """Our own config if another file's has replaced it as version `replaced` and its bucket definitions are
        complete, else None."""
        if (
            self._own is None
            or replaced is None
            or not self._own.complete(control.served_definitions(PostgresCursor(db, self._address)))
        ):
            return None
        return StoredConfig(replaced, self._own.yaml)

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        hashed = self._keys.hashed_name(bucket)
        return self._read(lambda db: read_chunk(db, hashed, bucket, after, upto))

    def listen(self) -> Listener:
        return NotifyListener(self._address)

    def replicator_alive(self) -> bool:
        with self._reading() as db:
            names = db.rows("select name from leases where name <> ?", COMPACTION)
            return any(self._status(db, name).runs for (name,) in names)

    def _status(self, db: Cursor, tag: str) -> ReplicatorStatus:
        """A holder that did not extend its lease, and whose session is gone, has ended or is cut off from the store: it
        does nothing for us."""
        row = db.one(_HEARD, tag, told_key(tag), HELD_SINCE.format(tag))
        if row is None:
            return ReplicatorStatus()
        owner, held, connected, now, value, since = row
        told_at, _, text = value.partition(" ")
        runs = False if is_gone(owner) else True if held else connected
        age, held_for = (max(0.0, float(now) - float(at)) if at else None for at in (told_at, since))
        return ReplicatorStatus(text, age or 0.0, runs, holder=owner, held=held_for)

    def close(self) -> None:
        self._connections.close()


def _end(connection: psycopg.Connection) -> None:
    """End a transaction that only read. After a rollback, psycopg would prepare all its statements again."""
    connection.commit()


# chunks of a bucket: Postgres joins the ops of the hot tail, segments are joined here

_SEGMENTS = 64  # read at most for one chunk; usually one is enough

# Where to start: a client that has not passed the last CLEAR needs nothing before it
_START = """
select case when b.clear_op > %(after)s and b.clear_op <= %(upto)s then b.clear_op - 1 else %(after)s end as position,
    b.compacted_op > %(upto)s as overtaken
from buckets b where b.id = %(bucket)s and b.name = %(name)s
"""

_HOT = f"""
with start as materialized (
    select position, overtaken, exists (
        select 1 from segments s where s.bucket = %(bucket)s and s.last_op > position and s.first_op <= %(upto)s
    ) as segmented from ({_START}) b
), candidates as materialized (
    select o.id, o.line, row_number() over (order by o.id) as number,
        sum(octet_length(o.line)) over (order by o.id) as bytes
    from start cross join lateral (
        select id, line from ops where bucket = %(bucket)s and id > position and id <= %(upto)s and not segmented
        order by id limit {CHUNK_OPS + 1}
    ) o
), taken as (
    select convert_to(string_agg(line, ',' order by id), 'UTF8') as ops, count(*) as size, max(id) as last
    from candidates where number = 1 or (number <= {CHUNK_OPS} and bytes <= {CHUNK_BYTES})
)
select segmented, overtaken, ops, size, last, (select count(*) from candidates) > size from start, taken
"""

# One statement, thus one moment: where to start and how many segments there are, up to the limit (kind 0); the segments
# that fit in a chunk (1); and of the ops beside them as many as may fit, and one more if there are more (2)
_MIXED = f"""
with start as materialized ({_START}), candidates as materialized (
    select s.first_op, s.last_op, s.sealed, s.blob, g.size, octet_length(g.bodies) as length
    from start cross join lateral (
        select first_op, last_op, sealed, blob from segments
        where bucket = %(bucket)s and last_op > position and first_op <= %(upto)s order by last_op limit {_SEGMENTS}
    ) s join segment_blobs g on g.id = s.blob
), runs as materialized (
    select * from (
        select *, row_number() over (order by last_op) as number, sum(size) over (order by last_op) as ops,
            sum(length) over (order by last_op) as bytes
        from candidates
    ) c where number = 1 or (ops <= {CHUNK_OPS} and bytes <= {CHUNK_BYTES})
), covered as materialized (
    select position, case when found = taken and found < {_SEGMENTS} then %(upto)s else last end as upto, found
    from start, (select count(*) as found from candidates) f,
        (select count(*) as taken, max(last_op) as last from runs) t
), lines as (
    select id, line from (
        select o.id, o.line, row_number() over (order by o.id) as number,
            sum(octet_length(o.line)) over (order by o.id) - octet_length(o.line) as before
        from covered cross join lateral (
            select id, line from ops where bucket = %(bucket)s and id > position and id <= upto
            order by id limit {CHUNK_OPS + 1}
        ) o
    ) o where number <= 2 or before <= {CHUNK_BYTES}
)
select 0, position, covered.upto, overtaken, null::bigint, null::bytea from start join covered using (position)
union all
select 1, first_op, last_op, sealed, r.size, g.bodies from runs r join segment_blobs g on g.id = r.blob
union all
select 2, id, id, null, null, convert_to(line, 'UTF8') from lines
order by 1, 3
"""


class _Question(NamedTuple):
    """A bucket, by key and name, and which of its ops to read."""

    bucket: int
    name: str
    after: OpId
    upto: OpId


def read_chunk(connection: psycopg.Connection, hashed: int, name: str, after: OpId, upto: OpId) -> Chunk:
    """See `storage.contract.reader.StoreReader.chunk`. `hashed` is the hash of the name."""
    found = _read(connection, _Question(hashed, name, after, upto))
    if found is None:
        moved = connection.execute("select id from moved_buckets where name = %s", [name]).fetchone()
        found = None if moved is None else _read(connection, _Question(moved[0], name, after, upto))
    return Chunk(b"", 0, after, more=False) if found is None else found


def _read(connection: psycopg.Connection, question: _Question) -> Chunk | None:
    """None when there is no such bucket."""
    row = connection.execute(_HOT, question._asdict(), binary=True).fetchone()
    if row is None:
        return None
    segmented, overtaken, ops, size, last, more = row
    if segmented:
        return _read_mixed(connection, question)
    return Chunk(ops or b"", size, OpId(last or question.after), more=more, overtaken=overtaken)


def _read_mixed(connection: psycopg.Connection, question: _Question) -> Chunk | None:
    """A chunk that contains segments."""
    rows = connection.execute(_MIXED, question._asdict(), binary=True).fetchall()
    if not rows:
        return None
    _, position, covered, overtaken, _, _ = rows[0]
    runs = [row[1:] for row in rows if row[0] == 1]
    lines = [(row[1], row[5]) for row in rows if row[0] == 2]
    parts = ChunkParts(question.upto)
    complete = _take(parts, runs, lines, position)
    return parts.chunk(question.after, more=not complete or covered < question.upto, overtaken=overtaken)


def _take(
    parts: ChunkParts,
    runs: Sequence[tuple[int, int, bool, int, bytes]],
    lines: Sequence[tuple[int, bytes]],
    position: int,
) -> bool:
    """Add segments and the ops of the hot tail between them. Returns False when they don't all fit."""
    start = 0
    for first, last, sealed, size, bodies in runs:
        end = bisect_left(lines, first, key=itemgetter(0))
        if not parts.take_lines(lines[start:end]):
            return False
        start = end
        if not parts.take_segment(unpacked(bodies), (first, last), size, position, sealed=sealed):
            return False
        position = last
    return parts.take_lines(lines[start:])
