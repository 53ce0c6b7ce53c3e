"""The endpoint's side of a store in Postgres."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import psycopg
from psycopg import sql

from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    Chunk,
    FlushMark,
    Heard,
    Listener,
    Newest,
    StoredConfig,
    StoreSnapshot,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.contract.revocations import Revocation
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.postgres.connection import READER, Connections
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.control import write_checkpoints
from headwater.storage.postgres.control.database import PostgresControl
from headwater.storage.postgres.history.chunk import read_chunk
from headwater.storage.postgres.listen import NotifyListener
from headwater.storage.postgres.migrate import read_secret
from headwater.storage.shared.common import union_of_names
from headwater.storage.shared.control import revocations, versions

_EMPTY_TOTAL = BucketTotal(0, 0)
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

# Buckets by the hashes of their names and the names. Of moved ones there are hardly ever any
_NAMED = """
select {0} from unnest(%s::bigint[], %s::text[]) q (key, name) join lateral (
    select * from buckets b where b.id in (q.key, (select m.id from moved_buckets m where m.name = q.name))
    and b.name = q.name
) b using (name)
"""

_Result = TypeVar("_Result")


class PostgresReader:
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
        self._keys = StoreKeys(self._read(read_secret))
        self.newest()  # fails now rather than at the first request

    def _read(self, ask: Callable[[psycopg.Connection], _Result]) -> _Result:
        within: psycopg.Connection | None = getattr(self._local, "snapshot", None)
        if within is not None:
            return ask(within)
        with self._connections.lend() as connection:
            return ask(connection)

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
                    yield _Snapshot(connection, self._keys, checkpoint, own or StoredConfig(row[0], row[1]))
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
        """Our own config if another file's has replaced it as version `replaced` and its row sides are complete, else
        None."""
        if (
            self._own is None
            or replaced is None
            or not self._own.complete(versions.complete_sides(PostgresControl(db)))
        ):
            return None
        return StoredConfig(replaced, self._own.yaml)

    def touched(self, after: OpId, upto: OpId) -> Touched:
        query = (
            "select o.last_op, f.last_op, f.source, f.committed_us, f.buckets, f.lookups"
            " from (select min(last_op) as last_op from flushes) o"
            " left join flushes f on f.last_op > %s and f.last_op <= %s order by f.last_op"
        )
        rows = self._read(lambda db: db.execute(query, [after, upto]).fetchall())
        oldest = rows[0][0]
        if oldest is None or after < oldest:
            return Touched(None, None)  # flushes before the oldest kept one are not recorded any more
        flushes = [row[1:] for row in rows if row[1] is not None]
        marks = tuple(FlushMark(OpId(row[0]), row[1], row[2]) for row in flushes if row[2])
        return Touched(union_of_names(row[3] for row in flushes), union_of_names(row[4] for row in flushes), marks)

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        hashed = self._keys.hashed_name(bucket)
        return self._read(lambda db: read_chunk(db, hashed, bucket, after, upto))

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        query = _NAMED.format("name, clear_op, compacted_op, last_op")
        question = [list(map(self._keys.hashed_name, buckets)), list(buckets)]
        rows = self._read(lambda db: db.execute(query, question).fetchall())
        return {row[0]: BucketMarks(*map(OpId, row[1:])) for row in rows}

    def listen(self) -> Listener:
        return NotifyListener(self._address)

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._connections.lend() as connection:
            return write_checkpoints.create(connection, self._address.schema, keys, lsns)

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._connections.lend() as connection:
            return write_checkpoints.request(connection, self._address.schema, requests, lsns)

    def forget_write_requests(self, seconds: float) -> int:
        with self._connections.lend() as connection:
            return write_checkpoints.forget_requests(connection, seconds)

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        return self._read(lambda db: write_checkpoints.after(db, after_seq))

    def newest_write(self) -> int:
        return self._read(write_checkpoints.newest)

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._read(lambda db: write_checkpoints.get(db, key))

    def revocations(self, after_seq: int) -> list[Revocation]:
        return self._read(lambda db: revocations.after(PostgresControl(db), after_seq))

    def replicator_alive(self) -> bool:
        return self._read(leases.is_held)

    def heard(self, tag: str) -> Heard:
        found = self._read(lambda db: leases.heard(db, tag))
        rows = self._read(lambda db: db.execute("select lsn, system_id from sources where tag = %s", [tag]).fetchall())
        return replace(found, stored=Lsn(rows[0][0]), system_id=rows[0][1]) if rows else found

    def noted(self, key: str) -> str:
        rows = self._read(lambda db: db.execute("select value from meta where key = %s", [key]).fetchall())
        return str(rows[0][0]) if rows else ""

    def close(self) -> None:
        self._connections.close()


class _Snapshot:
    """Answers within the reader's open transaction."""

    def __init__(
        self, connection: psycopg.Connection, keys: StoreKeys, checkpoint: Checkpoint, config: StoredConfig
    ) -> None:
        self._db = connection
        self._keys = keys
        self.checkpoint = checkpoint
        self.config = config

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        totals = dict.fromkeys(buckets, _EMPTY_TOTAL)
        question = [list(map(self._keys.hashed_name, totals)), list(totals)]
        for name, checksum, count in self._db.execute(_NAMED.format("name, checksum, count"), question).fetchall():
            totals[name] = BucketTotal(checksum, count)
        return totals

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {key: [] for key in keys}
        query = (
            "select l.key, l.output from unnest(%s::text[]) k (key)"
            " join lookups l on left(l.key, 500) = left(k.key, 500) and l.key = k.key"
            " join tables t on t.id = l.table_id and t.state = 'active' order by l.table_id, l.row_id, l.output"
        )
        for key, output in self._db.execute(query, [list(found)]).fetchall():
            found[key].append(output)
        return found


def _end(connection: psycopg.Connection) -> None:
    """End a transaction that only read. After a rollback, psycopg would prepare all its statements anew."""
    connection.commit()
