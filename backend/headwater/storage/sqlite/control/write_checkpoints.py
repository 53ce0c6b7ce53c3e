"""Write checkpoints of clients, in a separate file: the endpoint writes them and must never wait for a flush."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw
import orjson

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.shared.values import as_int
from headwater.storage.shared.write_key import stand_in_key, user_of
from headwater.storage.shared.writes import (
    CLIENTS_KEPT,
    FORGOTTEN_AT_ONCE,
    following,
    next_stand_in,
    of_client,
)
from headwater.storage.sqlite.connection import immediate, open_writer, sqlite_errors

_SCHEMA = """
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

_SELECT = "select key, id, lsns, seq from write_checkpoints"

_NEWEST = "select max(seq, (select coalesce(max(seq), 0) from write_checkpoints)) from write_state"

_NEXT = f"update write_state set seq = ({_NEWEST}) + 1 returning seq"

_UPSERT = """
insert into write_checkpoints (key, id, lsns, requested_at, seq) values (?, ?, ?, ?, ?)
on conflict (key) do update set
    id = excluded.id, lsns = excluded.lsns, requested_at = excluded.requested_at, seq = excluded.seq
"""

# The keys of a user's clients begin with `user/`, and "0" follows "/"
_FORGET = """
with clients as (select key, seq from write_checkpoints where key > ?1 || '/' and key < ?1 || '0')
delete from write_checkpoints where key in (
    select key from clients where seq <= (select seq from clients order by seq desc limit 1 offset ?2)
    order by seq limit ?3
) returning requested_at is null, key, id, lsns, seq
"""

_CAP = "update write_checkpoints set lsns = ?, seq = ? where key = ?"

_REQUESTED_AGAIN = "update write_checkpoints set requested_at = ? where key = ? and id = ? and requested_at is not null"


class WriteCheckpoints:
    """Ids per key that only grow. Safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = open_writer(path)
        with sqlite_errors(path), immediate(self._connection):  # other processes may be at the same
            self._connection.execute(_SCHEMA)

    def create(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            return self._put_all(dict.fromkeys(keys), lsns)

    def request(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            return self._put_all(requests, lsns)

    def _put_all(self, wanted: Mapping[str, int | None], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        new: set[str] = set()
        ids = {key: self._put(key, chosen, lsns, new) for key, chosen in wanted.items()}
        for user in new:
            self._forget(user, lsns)
        return ids

    def _put(self, key: str, chosen: int | None, lsns: Mapping[str, Lsn], new: set[str]) -> int:
        """Returns the id stored afterwards. Adds the user of a new client to `new`."""
        known = self._known(key)
        write = following(key, known, chosen, lsns, self._next)
        now = None if chosen is None else time.time()
        if write is None:
            self._connection.execute(_REQUESTED_AGAIN, (now, key, chosen))
            return known[key].id
        if key not in known:
            new.add(user_of(key))
        self._store(write, now)
        return write.id

    def _known(self, key: str) -> dict[str, WriteCheckpoint]:
        """What is stored under this key, and for the forgotten clients of its user."""
        keys = (key, stand_in_key(user_of(key)))
        rows = self._connection.execute(f"{_SELECT} where key in (?, ?)", keys)
        return {write.key: write for write in map(_checkpoint, rows)}

    def _store(self, write: WriteCheckpoint, requested_at: float | None) -> None:
        lsns = orjson.dumps(write.lsns).decode()
        self._connection.execute(_UPSERT, (write.key, write.id, lsns, requested_at, write.seq))

    def _forget(self, user: str, lsns: Mapping[str, Lsn]) -> None:
        """Forget the clients of a user that are too many."""
        rows = self._connection.execute(_FORGET, (user, CLIENTS_KEPT, FORGOTTEN_AT_ONCE)).fetchall()
        forgotten = [_checkpoint(row[1:]) for row in rows if row[0]]  # a client that chose its id asks again by itself
        if forgotten:
            stand_in = stand_in_key(user)
            before = self._known(stand_in).get(stand_in)
            self._store(next_stand_in(user, before, forgotten, lsns, self._next()), None)

    def _next(self) -> int:
        return as_int(self._connection.execute(_NEXT).fetchall()[0][0])

    def forget_requests(self, seconds: float) -> int:
        """See `StoreReader.forget_write_requests`."""
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            oldest = time.time() - seconds
            self._connection.execute("delete from write_checkpoints where requested_at < ?", (oldest,))
            return self._connection.changes()

    def cap(self, tag: str, lsn: Lsn) -> None:
        """See `StoreWriter.cap_writes`."""
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            for row in self._connection.execute(_SELECT).fetchall():
                write = _checkpoint(row)
                if write.lsns.get(tag, lsn) > lsn:
                    capped = orjson.dumps({**write.lsns, tag: lsn}).decode()
                    self._connection.execute(_CAP, (capped, self._next(), write.key))

    def after(self, seq: int) -> list[WriteCheckpoint]:
        sql = f"{_SELECT} where seq > ? order by seq"
        with self._lock, sqlite_errors(self._path):
            return [_checkpoint(row) for row in self._connection.execute(sql, (seq,))]

    def newest(self) -> int:
        """See `StoreReader.newest_write`."""
        with self._lock, sqlite_errors(self._path):
            return as_int(self._connection.execute(_NEWEST).fetchall()[0][0])

    def get(self, key: str) -> WriteCheckpoint | None:
        with self._lock, sqlite_errors(self._path):
            return of_client(key, self._known(key))

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _checkpoint(row: tuple[apsw.SQLiteValue, ...]) -> WriteCheckpoint:
    lsns = {str(tag): Lsn(int(lsn)) for tag, lsn in orjson.loads(str(row[2])).items()}
    return WriteCheckpoint(str(row[0]), as_int(row[1]), lsns, as_int(row[3]))
