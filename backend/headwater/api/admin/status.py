"""The state of replication, as it is found for each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.versions import VersionTold, told
from headwater.api.auth.keys import Unfetched
from headwater.replication.health.standing import Standing, Standings
from headwater.replication.versions import why_served
from headwater.storage.backend import Store
from headwater.storage.contract.reader import StoreReader


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

    sources: tuple[Standing, ...]
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
        self._standings = Standings(reader, settings.sources)

    def status(self) -> Status:
        """Report the state of sources, slots, comparisons and versions of the sync config."""
        with self._settings.store() as store:
            return self.read(store)

    def read(self, store: Store) -> Status:
        """Like `status`, for an open store."""
        checkpoint = self._reader.newest()
        sources = tuple(self._standings.find())
        return Status(
            sources,
            tuple(told(each) for each in store.versions() if each.state.value in {"processing", "active"}),
            why_served(store),
            None if checkpoint is None else checkpoint.checkpoint.op_id,
            any(source.runs for source in sources),
            version("headwater"),
            tuple(KeysStatus(each.address, str(each.error), each.since) for each in self._unfetched()),
        )
