"""Settings of the admin routes, and their access to the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.api.admin.errors import NotThereError
from headwater.api.workers import Workers
from headwater.source.connect import SourceSettings
from headwater.storage.address import StoreAddress
from headwater.storage.backend import Store
from headwater.storage.open import open_backend
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Settings of the admin routes. With `port`, only that port serves them. `from_file` says that the service config
    names the sync config. `max_buckets` and `max_results` are the limits of devices. `workers` are the processes of the
    endpoint, if it has several."""

    tokens: tuple[str, ...] = field(repr=False)
    storage: StoreAddress
    sources: tuple[SourceSettings, ...]
    port: int | None = None
    from_file: bool = False
    max_buckets: int = MOST_BUCKETS
    max_results: int = MOST_RESULTS
    workers: Workers | None = None

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the store for one request. Blocking."""
        store = open_backend(self.storage).open_store()
        try:
            yield store
        finally:
            store.close()

    @property
    def source(self) -> SourceSettings:
        """The source. Raises NotThereError when none is configured."""
        if not self.sources:
            raise NotThereError("no source is configured", fix="add one in replication.connections")
        return self.sources[0]
