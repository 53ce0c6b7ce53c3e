"""The endpoint's side of a store, except for what devices are sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import ReplicatorStatus, WriteCheckpoint
from headwater.storage.contract.store import Revocation
from headwater.storage.sql import control, write_checkpoints
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.tables import source_state


class SqlReader(ABC):
    """See `storage.contract.reader.StoreReader`. Each database adds how it reads checkpoints, chunks and lookups."""

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

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._writes() as db:
            return write_checkpoints.create(db, keys, lsns)

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._writes() as db:
            return write_checkpoints.request(db, requests, lsns)

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
