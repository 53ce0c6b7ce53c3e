"""The endpoint's side."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId, bucket_key
from headwater.storage.contract.compaction import LEASE
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    Chunk,
    FlushMark,
    Listener,
    Newest,
    StoredConfig,
    StoreSnapshot,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.contract.revocations import Revocation
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.shared.chunking import ChunkParts
from headwater.storage.shared.common import union_of_names
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.write_key import stand_in_key, user_of
from headwater.storage.shared.writes import (
    CLIENTS_KEPT,
    FORGOTTEN_AT_ONCE,
    following,
    next_stand_in,
    of_client,
)
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import Bucket, State
from tests.support.dictionaries.versions import served


class DictReader:
    """See `storage.contract.store.StoreReader`."""

    def __init__(self, kept: Kept, own: OwnConfig | None) -> None:
        self._kept = kept
        self._own = own
        self._seen = threading.local()

    @property
    def _state(self) -> State:
        """That of the thread's open snapshot, else the newest."""
        state: State = getattr(self._seen, "state", None) or self._kept.state
        return state

    @contextmanager
    def snapshot(self) -> Iterator[StoreSnapshot | None]:
        state = self._seen.state = self._kept.state
        number = served(state, self._own)
        try:
            yield None if number is None else _Snapshot(state, StoredConfig(number, state.versions[number].yaml))
        finally:
            self._seen.state = None

    def newest(self) -> Newest | None:
        state = self._state
        number = served(state, self._own)
        revoked = max((each.seq for each in state.revocations), default=0)
        return None if number is None else Newest(state.told_checkpoint(), number, revoked)

    def touched(self, after: OpId, upto: OpId) -> Touched:
        flushes = self._state.flushes
        if not flushes or after < min(flushes):
            return Touched(None, None)  # what the oldest kept flush followed on is no longer known
        found = [flush for flush in flushes.values() if after < flush.last_op <= upto]
        marks = (FlushMark(OpId(flush.last_op), flush.source, flush.committed_us) for flush in found)
        return Touched(
            union_of_names(flush.buckets for flush in found),
            union_of_names(flush.lookups for flush in found),
            tuple(mark for mark in marks if mark.committed_us),
        )

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        held = self._state.buckets.get(bucket_key(bucket))
        if held is None:
            return Chunk(b"", 0, after, more=False)
        parts = ChunkParts(upto)
        more = not _take(parts, held, held.clear_op - 1 if after < held.clear_op <= upto else after, upto)
        return parts.chunk(after, more=more, overtaken=held.compacted_op > upto)

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        found = [bucket for name in buckets if (bucket := self._state.buckets.get(bucket_key(name))) is not None]
        return {
            bucket.name: BucketMarks(OpId(bucket.clear_op), OpId(bucket.compacted_op), OpId(bucket.last_op))
            for bucket in found
        }

    def listen(self) -> Listener:
        return self._kept.listen()

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        return self._number(dict.fromkeys(keys), lsns)

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        return self._number(requests, lsns)

    def _number(self, wanted: Mapping[str, int | None], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._kept.changing() as state:
            for key, chosen in wanted.items():
                write = following(key, state.writes, chosen, lsns, lambda: state.last_write + 1)
                if write is not None:
                    state.writes[key], state.last_write = write, write.seq
                if chosen is None:
                    state.requested.pop(key, None)
                elif write is not None or key in state.requested:
                    state.requested[key] = time.time()
            ids = {key: state.writes[key].id for key in wanted}
            for user in set(map(user_of, wanted)):
                _forget_clients(state, user, lsns)
            return ids

    def forget_write_requests(self, seconds: float) -> int:
        with self._kept.changing() as state:
            old = [key for key, asked in state.requested.items() if asked < time.time() - seconds]
            for key in old:
                del state.writes[key], state.requested[key]
            return len(old)

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        found = [write for write in self._state.writes.values() if write.seq > after_seq]
        return sorted(found, key=lambda write: write.seq)

    def newest_write(self) -> int:
        return self._state.last_write

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return of_client(key, self._state.writes)

    def revocations(self, after_seq: int) -> list[Revocation]:
        return [each for each in self._state.revocations if each.seq > after_seq and each.until >= time.time()]

    def replicator_alive(self) -> bool:
        leases = self._state.leases
        return any(held.expires > time.time() for name, held in leases.items() if name != LEASE)

    def noted(self, key: str) -> str:
        return self._state.notes.get(key, "")

    def close(self) -> None:
        pass


def _forget_clients(state: State, user: str, lsns: Mapping[str, Lsn]) -> None:
    clients = [write for write in state.writes.values() if write.key.startswith(f"{user}/")]
    forgotten = []
    for write in sorted(clients, key=lambda write: -write.seq)[CLIENTS_KEPT:][-FORGOTTEN_AT_ONCE:]:
        del state.writes[write.key]
        if state.requested.pop(write.key, None) is None:
            forgotten.append(write)
    if forgotten:
        state.last_write += 1
        before = state.writes.get(stand_in_key(user))
        stand_in = next_stand_in(user, before, forgotten, lsns, state.last_write)
        state.writes[stand_in.key] = stand_in


def _take(parts: ChunkParts, bucket: Bucket, position: int, upto: int) -> bool:
    """Take everything after a position; False when there is no room for all of it."""
    for _, segment in bucket.segments_after(position):
        first, last, size = segment.first, segment.last, segment.size
        if first > upto:
            break
        if not parts.take_lines(bucket.hot_between(position, first - 1)):
            return False
        if parts.is_too_long(first, last, size, position):
            return False
        if not parts.take_segment(
            unpacked(segment.bodies or b""), (first, last), size, position, sealed=segment.sealed
        ):
            return False
        position = last
    return parts.take_lines(bucket.hot_between(position, upto))


@dataclass(frozen=True)
class _Snapshot:
    state: State
    config: StoredConfig

    @property
    def checkpoint(self) -> Checkpoint:
        return self.state.told_checkpoint()

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        held = {name: self.state.buckets.get(bucket_key(name)) for name in buckets}
        return {name: BucketTotal(b.checksum, b.count) if b else BucketTotal(0, 0) for name, b in held.items()}

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {key: [] for key in keys}
        for table in self.state.active_tables().values():
            for _, entries in sorted(table.lookups.items()):
                for entry in entries:
                    if entry.key in found:
                        found[entry.key].append(entry.output)
        return found
