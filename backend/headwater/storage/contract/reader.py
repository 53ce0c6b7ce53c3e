"""The endpoint's side of a store. Calls block; the endpoint makes them from threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.store import Revocation


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A consistent state that clients may see: every op up to `op_id`, and per source tag the LSN up to which every
    commit is contained. `op_id` never goes back; an LSN goes back only where the source did."""

    op_id: OpId
    lsns: Mapping[str, Lsn]


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A deployed sync config. `id` grows with each one; a sync stream ends when another becomes active."""

    id: int
    yaml: str


@dataclass(frozen=True, slots=True)
class Newest:
    """What there is at one moment: the newest checkpoint, the id of the config to serve, and the `seq` of the last
    revocation, 0 where there is none."""

    checkpoint: Checkpoint
    config_id: int
    revoked: int


@dataclass(frozen=True, slots=True)
class BucketTotal:
    """Sum of the op checksums (unsigned, modulo 2^32) and number of ops that a client starting at 0 gets."""

    checksum: int
    count: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of one bucket's history. `ops` holds `size` finished op objects (JSON, UTF-8) joined by commas, to be put
    between `"data":[` and `]`. `next_after` is the last op id covered; `more` says that ops up to the requested
    checkpoint may follow. `overtaken` says that compaction went past the requested checkpoint, so the bucket's state at
    it is no longer complete: the checkpoint must not be completed, and a newer one exists."""

    ops: bytes
    size: int
    next_after: OpId
    more: bool
    overtaken: bool = False


@dataclass(frozen=True, slots=True)
class BucketMarks:
    """How far a bucket's history goes: its last CLEAR, the position of compaction, its newest op. Compaction moves one
    of the first two together with its first change to existing ops; code that removes what must not be sent any more
    moves one of them together with its last."""

    clear_op: OpId
    compacted_op: OpId
    last_op: OpId


@dataclass(frozen=True, slots=True)
class ReplicatorStatus:
    """The last status of the replicator of a source: the text, empty when there is none, and how many seconds ago it
    was written. `runs` says whether its process is there; None where that can't be known. The store has the source
    up to `stored`, None before the first snapshot; it was read from the cluster `system_id`. `holder` is the process
    that took its lease, `held` seconds ago; empty and None where that is not known."""

    text: str = ""
    age: float = 0.0
    runs: bool | None = False
    stored: Lsn | None = None
    system_id: str = ""
    holder: str = ""
    held: float | None = None


class FlushMark(NamedTuple):
    """A flush that brought commits of a source: its last op, the source's tag, and when the newest of the commits was
    made, in microseconds since 2000-01-01."""

    last_op: OpId
    source: str
    committed_us: int

    @property
    def committed_at(self) -> float:
        """The same in seconds since 1970."""
        return _EPOCH_2000 + self.committed_us / 1e6


_EPOCH_2000 = 946_684_800


@dataclass(frozen=True, slots=True)
class Touched:
    """What changed between two checkpoints, by bucket name and lookup key. None means anything: too much to name. May
    name more than changed, never less. `flushes` are those that brought commits, oldest first, as far as they are
    recorded."""

    buckets: frozenset[str] | None
    lookups: frozenset[str] | None
    flushes: tuple[FlushMark, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """The newest write of one client (`key` is user and client). Its data is in every checkpoint whose LSNs reach
    `lsns`. `seq` grows with each change of any write checkpoint."""

    key: str
    id: int
    lsns: Mapping[str, Lsn]
    seq: int


class StoreSnapshot(Protocol):
    """A consistent view: all answers belong to `checkpoint`."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def config(self) -> StoredConfig: ...

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        """Totals at the checkpoint, for every requested name. An unknown bucket has 0 and 0."""

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """The outputs of each key at the checkpoint."""


class Listener(Protocol):
    """Reports commits of the store. Its file descriptor is for an event loop: readable after a commit of another
    process."""

    def fileno(self) -> int: ...

    def drain(self) -> None:
        """Make the descriptor unreadable until the next commit."""

    def close(self) -> None: ...


class StoreReader(Protocol):
    """The endpoint's side of a store. Safe to call from several threads at once."""

    def snapshot(self) -> AbstractContextManager[StoreSnapshot | None]:
        """The newest checkpoint and the config to serve, which is the active one or the endpoint's own (see
        `storage.contract.versions.OwnConfig`); None while no active config has a checkpoint. While it is open,
        everything that its thread asks of the reader belongs to the same moment."""

    def newest(self) -> Newest | None:
        """What `snapshot` would see; None where it would. Cheap, to be called after a wake-up."""

    def touched(self, after: OpId, upto: OpId) -> Touched:
        """What changed in (after, upto]."""

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        """Ops with after < op_id <= upto, at most 1,000, and at most 1 MiB of row data except that a larger op comes
        alone. An empty chunk has `size` 0 and `more` False. Starts at the bucket's last CLEAR at or below `upto`,
        leaving out all ops before it."""

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        """The marks of these buckets now, without those that the store does not have. Cheap: caches ask before every
        answer."""

    def listen(self) -> Listener: ...

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        """Create an id for each key (duplicates share one), one above its last. It is valid once checkpoints reach
        `lsns`, and what the key's last one had of other sources. Durable on return."""

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        """Store ids that clients chose, by key. An id above the key's last one replaces it, and is valid once
        checkpoints reach `lsns`; any other id changes nothing, except that a repeated one counts as requested again.
        Returns the ids stored afterwards. The ids share their numbering with those of `create_write_checkpoint`.
        Durable on return."""

    def forget_write_requests(self, seconds: float) -> int:
        """Delete write checkpoints whose ids clients chose and have not requested for `seconds`. Returns how many."""

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        """Write checkpoints created or replaced after `after_seq`, in order of `seq`."""

    def newest_write(self) -> int:
        """The `seq` of the newest change of any write checkpoint; 0 when there is none. Cheap."""

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        """The newest of a client. Of a user who has too many clients, those that wrote longest ago are forgotten: for
        them, this returns one that stands for all of them (see `storage.sql.write_checkpoints`)."""

    def revocations(self, after_seq: int) -> list[Revocation]:
        """Those made after `after_seq` that are not over, in order of `seq`."""

    def replicator_alive(self) -> bool:
        """Whether any replicator holds an unexpired lease, or is known to run."""

    def replicator_status(self, tag: str) -> ReplicatorStatus:
        """The last status of the replicator of a source, and what the store has of that. Does not wait for a writer."""

    def get_meta(self, key: str) -> str:
        """The text that the replicator stored under a key; empty when there is none."""

    def close(self) -> None: ...


# the keys of write checkpoints: a user, or a user and a client, as `user/client`


def user_in_key(user_id: str) -> str:
    """A user's id as a key begins with it, percent-encoded so that it contains no `/`, which ends it. An id without `/`
    and `%` stays as it is."""
    return user_id.replace("%", "%25").replace("/", "%2F")


def user_of(key: str) -> str:
    """What a key begins with."""
    return key.partition("/")[0]


def stand_in_key(user: str) -> str:
    """The key of what stands for the forgotten clients of a user. No other key ends its user with `%`."""
    return f"{user}%"
