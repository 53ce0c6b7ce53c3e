"""Errors of a store, and the data of leases, sources, tables, requests, revocations and what
operators did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headwater.errors import HeadwaterError
from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reason import Cause, ResyncReason


class StoreError(HeadwaterError):
    """The store can't do its work: it is damaged, full, or of another format."""

    code = "HW_4001"


class StoreGoneError(StoreError):
    """A file of the embedded store was removed or replaced while a process had it open."""

    code = "HW_4010"


class StorePublishedError(StoreError):
    """A publication of the source covers the store's own tables: its own writes would come back in the stream, and
    Postgres refuses to delete from published tables that have no replica identity."""

    code = "HW_4011"


class StoreBusyError(HeadwaterError):
    """Another process holds the store's write lock for longer than we wait."""

    code = "HW_4002"


class StoreUnreachableError(HeadwaterError):
    """The store's database does not answer for now; nothing of an open transaction was kept."""

    code = "HW_4008"


class PartLostError(HeadwaterError):
    """What a task of a bulk job wrote is missing or damaged; nothing of it was taken over."""

    code = "HW_4009"


def part_lost(state: str, path: str) -> PartLostError:
    """The error for a part that is missing or damaged, as `state` says."""
    return PartLostError(f"a part of the bulk job is {state}", path, "the job starts over at the next attempt")


class BucketKeyTakenError(HeadwaterError):
    """A bucket has the key of another one. It was given a key of its own, which counts from the next attempt on;
    nothing of this one was kept."""

    code = "HW_4012"

    def __init__(self, buckets: int) -> None:
        super().__init__(
            f"the keys of {buckets:,} new buckets were taken by others", "", "they have keys of their own now"
        )
        self.args = (buckets,)


class LeaseLostError(HeadwaterError):
    """Another replicator took over; nothing of this transaction was kept."""

    code = "HW_4003"


class LeaseHeldError(HeadwaterError):
    """Another replicator works on this source."""

    code = "PSYNC_S1003"


class SealedStoreError(StoreError):
    """The store is sealed: it can be read, but no process can write to it."""

    code = "HW_4104"


def sealed_error(note: str, where: str) -> SealedStoreError:
    """The error of a write to a sealed store."""
    return SealedStoreError(
        f"the store is sealed: {note}",
        where,
        "use the store that replaced it; if there is none, `headwater store unseal` opens it again",
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write what belongs to one source, for `ttl` seconds unless renewed. A newer holder has a higher
    epoch."""

    name: str
    owner: str
    epoch: int
    ttl: float


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source was followed: every commit up to `lsn` is in the store."""

    source: str
    lsn: Lsn
    slot: str
    system_id: str
    timeline: int


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One generation of a source table. Each row names the layout that it was written in, a position in `layouts`.
    `resync` is the reason why the table is being compared with the source, None when it is not."""

    id: int
    source: str
    layouts: tuple[Relation, ...]
    fingerprint: str
    resync: ResyncReason | None = None

    def has(self, *causes: Cause) -> bool:
        """Whether the table is being compared for one of these causes."""
        return self.resync is not None and self.resync.cause in causes

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]

    @property
    def computed(self) -> bool:
        """Whether its rows are the result of a query, rather than those of a table of the source."""
        return self.relation.computed


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """The position in a source's log when a flush commits. `committed_us` is the time of its newest commit in
    microseconds since 2000-01-01, or 0 when there was none."""

    lsn: Lsn
    committed_us: int = 0


# requests: work that a command asks the running replicator to do, and its outcome


class RequestState(Enum):
    """State of a request. DONE and FAILED are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `payload` and `result` are JSON texts whose form depends on the kind; `progress` is a line for a
    person; `created` is in seconds since 1970."""

    id: int
    kind: str
    source: str
    payload: str
    state: RequestState
    progress: str
    result: str
    created: float


# revocations: what an operator takes back of users and devices. What follows from one is the endpoint's to know


class RevokedKind(Enum):
    """What is taken back: tokens of a user, of a session or one alone, by what their claims say; nothing but the
    streams that are open; or a session of the studio."""

    USER = "sub"
    SESSION = "session"
    TOKEN = "jti"  # noqa: S105 - the name of a claim
    STREAMS = "streams"
    STUDIO = "studio"


@dataclass(frozen=True, slots=True)
class Revocation:
    """`seq` grows with each. It was made at `since` and is forgotten after `until`, in seconds since 1970."""

    seq: int
    kind: RevokedKind
    value: str
    since: float
    until: float


# what operators did and keep

CHANGES_KEPT = 10_000
"""How many changes a store keeps, the newest."""


@dataclass(frozen=True, slots=True)
class AdminChange:
    """A change that an operator made: `what`, and how in `detail`, as JSON. `at` is in seconds since 1970. `who` is
    empty for an operator without a name."""

    id: int
    at: float
    who: str
    role: str
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class StoredCase:
    """A case that sync configs are tried with: `content` is JSON that the store knows nothing of. `updated` is in
    seconds since 1970."""

    name: str
    content: str
    updated: float
    author: str
