"""Stores in memory, by the names in their addresses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

from headwater.storage.backend import Backend
from headwater.storage.contract.stats import DefinitionStats, Disk, StoreStats, stats_by_definition
from headwater.storage.contract.store import LeaseHeldError
from headwater.storage.contract.versions import OwnConfig
from tests.support.dictionaries import stats
from tests.support.dictionaries.archive import Archive
from tests.support.dictionaries.bulk import DictPart
from tests.support.dictionaries.forget import DictForget
from tests.support.dictionaries.history import History
from tests.support.dictionaries.kept import STORES
from tests.support.dictionaries.reader import DictReader
from tests.support.dictionaries.store import DictStore
from tests.support.dictionaries.upkeep import DictUpkeep
from tests.support.dictionaries.verify import DictVerify


class DictBackend(Archive, History):
    """See `storage.backend.Backend`."""

    def exists(self) -> bool:
        return self.address.name in STORES

    def raise_if_published(self, publications: Sequence[str]) -> None:
        """Never."""

    def older_format(self) -> int | None:
        return None

    def open_store(self) -> DictStore:
        return DictStore(self.address.known, self.made)

    def open_reader(self, own: OwnConfig | None = None) -> DictReader:
        return DictReader(self.made, own)

    def open_compaction(self) -> DictUpkeep:
        return DictUpkeep(self.kept)

    def open_forget(self) -> DictForget:
        return DictForget(self.kept)

    def open_verify(self) -> nullcontext[DictVerify]:
        return nullcontext(DictVerify(self.kept))

    def definition_stats(self) -> list[DefinitionStats]:
        return list(stats_by_definition(stats.bucket_stats(self.state)))

    def disk_use(self) -> Disk:
        return stats.disk_use(self.state)

    def store_stats(self) -> StoreStats:
        return stats.store_stats(self.state)

    def remove(self) -> None:
        STORES.pop(self.address.name, None)

    def open_part(self, table: int, number: int, attempt: str) -> DictPart:
        return DictPart(self.kept, table, number, attempt)

    def seal(self, note: str) -> None:
        with self.kept.changing() as state:
            if any(held.expires > time.time() for held in state.leases.values()):
                raise LeaseHeldError("the store is being written to", self.address.name, "stop the service")
            state.sealed = note

    def unseal(self) -> str | None:
        return self.kept.unseal()

    def seal_note(self) -> str | None:
        return self.state.sealed


_: type[Backend] = DictBackend
