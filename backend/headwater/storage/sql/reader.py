"""The endpoint's side of a store, except for chunks and for which config is served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    FlushMark,
    ReplicatorStatus,
    StoredConfig,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.contract.store import Revocation
from headwater.storage.shared.common import union_of_names
from headwater.storage.sql import control, write_checkpoints
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.tables import source_state

_TOUCHED = """
select o.last_op, f.last_op, f.source, f.committed_us, f.buckets, f.lookups
from (select min(last_op) as last_op from flushes) o
left join flushes f on f.last_op > ? and f.last_op <= ? order by f.last_op
"""
_EMPTY_TOTAL = BucketTotal(0, 0)


def _hashed(names: Sequence[str], keys: StoreKeys) -> dict[str, int]:
    return {name: keys.hashed_name(name) for name in names}


class SqlSnapshot:
    """See `storage.contract.reader.StoreSnapshot`. Answers within the open transaction of a cursor."""

    def __init__(self, db: Cursor, keys: StoreKeys, checkpoint: Checkpoint, config: StoredConfig) -> None:
        self._db = db
        self._keys = keys
        self.checkpoint = checkpoint
        self.config = config

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        found = self._db.dialect.named_buckets(self._db, "name, checksum, count", _hashed(buckets, self._keys))
        return dict.fromkeys(buckets, _EMPTY_TOTAL) | {name: BucketTotal(*total) for name, *total in found}

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {key: [] for key in keys}
        for key, output in self._db.dialect.lookups_under(self._db, list(found)):
            found[key].append(output)
        return found


class SqlReader(ABC):
    """See `storage.contract.reader.StoreReader`. Each database adds how it reads checkpoints and chunks."""

    _keys: StoreKeys

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Cursor]:
        """A cursor for reading: that of the thread's snapshot if there is one."""

    @abstractmethod
    def _writes(self) -> AbstractContextManager[Cursor]:
        """A cursor for writing write checkpoints."""

    def _reading_writes(self) -> AbstractContextManager[Cursor]:
        """A cursor for reading write checkpoints."""
        return self._writes()

    @abstractmethod
    def _status(self, db: Cursor, tag: str) -> ReplicatorStatus:
        """The status that the replicator of a source reported, without what the store has of the source."""

    def touched(self, after: OpId, upto: OpId) -> Touched:
        with self._reading() as db:
            rows = db.rows(_TOUCHED, after, upto)
        oldest = rows[0][0]
        if oldest is None or after < oldest:
            return Touched(None, None)  # flushes before the oldest kept one are not recorded any more
        flushes = [row[1:] for row in rows if row[1] is not None]
        marks = tuple(FlushMark(OpId(row[0]), row[1], row[2]) for row in flushes if row[2])
        return Touched(union_of_names(row[3] for row in flushes), union_of_names(row[4] for row in flushes), marks)

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        with self._reading() as db:
            columns = "name, clear_op, compacted_op, last_op"
            found = db.dialect.named_buckets(db, columns, _hashed(buckets, self._keys))
        return {name: BucketMarks(*marks) for name, *marks in found}

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._writes() as db:
            return write_checkpoints.put(db, dict.fromkeys(keys), lsns)

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._writes() as db:
            return write_checkpoints.put(db, requests, lsns)

    def forget_write_requests(self, seconds: float) -> int:
        with self._writes() as db:
            return write_checkpoints.forget_requests(db, seconds)

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        with self._reading_writes() as db:
            return write_checkpoints.after(db, after_seq)

    def newest_write(self) -> int:
        with self._reading_writes() as db:
            return write_checkpoints.newest(db)

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        with self._reading_writes() as db:
            return write_checkpoints.get(db, key)

    def revocations(self, after_seq: int) -> list[Revocation]:
        with self._reading() as db:
            return control.revocations(db, after_seq)

    def replicator_status(self, tag: str) -> ReplicatorStatus:
        with self._reading() as db:
            found, state = self._status(db, tag), source_state(db, tag)
        return found if state is None else replace(found, stored=state.lsn, system_id=state.system_id)

    def get_meta(self, key: str) -> str:
        with self._reading() as db:
            return control.get_meta(db, key) or ""
