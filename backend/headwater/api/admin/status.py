"""The state of replication, as replicators store it for each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.versions import VersionTold, told
from headwater.api.auth.keys import Unfetched
from headwater.bulk.contract import BulkProgress
from headwater.oplog.lsn import format_lsn
from headwater.replication.health.model import Compared, Health, State, Trouble, from_json, health_key
from headwater.replication.versions import why_served
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth
from headwater.storage.backend import Store
from headwater.storage.contract.reader import StoreReader


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of one source. `cause` is the error that stops replication now, `trouble` the last one that did.
    `lag_bytes` of the source's log are not in the store yet, and `wal_status` says whether the source still has all of
    it; both are in `slot` too. `compared` are the tables that are being compared with the source; `work` and `done`
    are the progress of bulk work."""

    source: str
    state: State = State.STOPPED
    cause: Trouble | None = None
    since: float | None = None
    at: float | None = None
    trouble: Trouble | None = None
    compared: tuple[Compared, ...] = ()
    findings: tuple[Finding, ...] = ()
    slot: SlotHealth | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    wal_status: str | None = None
    position: str | None = None
    triggers: bool = False
    work: str = ""
    done: BulkProgress | None = None


@dataclass(frozen=True, slots=True)
class KeysStatus:
    """An address whose keys of tokens this process can't fetch: why, and since when, in seconds since 1970."""

    address: str
    cause: str
    since: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of this deployment. `versions` of the sync config are those that are active or being processed, and
    `served` says which devices are served and why. `keys` are those of tokens that can't be fetched."""

    sources: tuple[SourceStatus, ...]
    versions: tuple[VersionTold, ...]
    served: str
    checkpoint: int | None
    replicator: bool
    headwater: str
    keys: tuple[KeysStatus, ...] = ()


class StatusDesk:
    """Reads the state of replication."""

    def __init__(
        self, settings: AdminSettings, reader: StoreReader, unfetched: Callable[[], Sequence[Unfetched]]
    ) -> None:
        self._unfetched = unfetched
        self._settings = settings
        self._reader = reader

    def status(self) -> Status:
        """Report the state of sources, slots, comparisons and versions of the sync config."""
        with self._settings.store() as store:
            return self.read(store)

    def read(self, store: Store) -> Status:
        """Like `status`, for an open store."""
        checkpoint = self._reader.newest()
        return Status(
            tuple(self._source(store, source.tag) for source in self._settings.sources),
            tuple(told(each) for each in store.versions() if each.state.value in {"processing", "active"}),
            why_served(store),
            None if checkpoint is None else checkpoint.checkpoint.op_id,
            self._reader.replicator_alive(),
            version("headwater"),
            tuple(KeysStatus(each.address, str(each.error), each.since) for each in self._unfetched()),
        )

    def _source(self, store: Store, tag: str) -> SourceStatus:
        health, state = health_of(self._reader, tag), store.source_state(tag)
        position = None if state is None else format_lsn(state.lsn)
        if health is None:
            return SourceStatus(tag, position=position)
        return SourceStatus(
            tag,
            health.state,
            health.cause,
            health.since,
            health.at,
            health.trouble,
            health.compared,
            health.findings,
            health.slot,
            health.lag_seconds,
            None if health.slot is None else health.slot.behind,
            None if health.slot is None else health.slot.wal_status,
            position,
            health.triggers,
            health.work,
            health.done,
        )


def health_of(reader: StoreReader, tag: str) -> Health | None:
    """The health that the replicator of a source stored last; None before the first replicator ran."""
    health = from_json(reader.noted(health_key(tag)))
    return None if health is None else health.seen(alive=reader.replicator_alive())
