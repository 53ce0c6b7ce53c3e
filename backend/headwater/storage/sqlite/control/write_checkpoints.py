"""Write checkpoints of clients, in a file of their own: the endpoint writes them, and must never wait for a flush."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw
import orjson

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.store import WriteCheckpoint
from headwater.storage.shared.values import whole
from headwater.storage.sqlite.connection import immediate, open_writer, sqlite_errors

_SCHEMA = """
create table if not exists write_checkpoints (
    key  text primary key,
    id   integer not null,
    lsns text not null,
    seq  integer not null
) strict, without rowid;
create index if not exists write_checkpoints_seq on write_checkpoints (seq);
"""

_SELECT = "select key, id, lsns, seq from write_checkpoints"

_UPSERT = """
insert or replace into write_checkpoints (key, id, lsns, seq)
values (?, ?, ?, (select coalesce(max(seq), 0) + 1 from write_checkpoints))
"""


class WriteCheckpoints:
    """Ids per key that only grow. Safe to call from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = open_writer(path)
        with sqlite_errors(path):
            self._connection.execute(_SCHEMA)

    def create(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            return {key: self._create(key, lsns) for key in dict.fromkeys(keys)}

    def _create(self, key: str, lsns: Mapping[str, Lsn]) -> int:
        row = self._connection.execute(f"{_SELECT} where key = ?", (key,)).fetchone()
        before = None if row is None else _checkpoint(row)
        write_id = 1 if before is None else before.id + 1
        # Of two processes the later one may have asked the source earlier: a position never goes back
        merged = {tag: max(lsn, before.lsns.get(tag, lsn) if before else lsn) for tag, lsn in lsns.items()}
        self._connection.execute(_UPSERT, (key, write_id, orjson.dumps(merged).decode()))
        return write_id

    def cap(self, tag: str, lsn: Lsn) -> None:
        """See `StoreWriter.cap_writes`."""
        with self._lock, sqlite_errors(self._path), immediate(self._connection):
            for row in self._connection.execute(_SELECT).fetchall():
                write = _checkpoint(row)
                if write.lsns.get(tag, lsn) > lsn:
                    capped = orjson.dumps({**write.lsns, tag: lsn}).decode()
                    self._connection.execute(_UPSERT, (write.key, write.id, capped))

    def after(self, seq: int) -> list[WriteCheckpoint]:
        sql = f"{_SELECT} where seq > ? order by seq"
        with self._lock, sqlite_errors(self._path):
            return [_checkpoint(row) for row in self._connection.execute(sql, (seq,))]

    def get(self, key: str) -> WriteCheckpoint | None:
        with self._lock, sqlite_errors(self._path):
            row = self._connection.execute(f"{_SELECT} where key = ?", (key,)).fetchone()
        return None if row is None else _checkpoint(row)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _checkpoint(row: tuple[apsw.SQLiteValue, ...]) -> WriteCheckpoint:
    lsns = {str(tag): Lsn(int(lsn)) for tag, lsn in orjson.loads(str(row[2])).items()}
    return WriteCheckpoint(str(row[0]), whole(row[1]), lsns, whole(row[3]))
