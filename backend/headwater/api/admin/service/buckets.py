"""What the store holds: its largest buckets, tables, histories and disk use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, Struct

from headwater.api.admin.route import MOST_SECONDS, TOO_LONG, AdminSettings
from headwater.api.errors import ApiError
from headwater.api.kept import Kept
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.open import open_store
from headwater.storage.sql.stats import BucketStats, DefinitionStats, Disk, HistoryStats, StoreStats, TableStats

FRESH_SECONDS, USABLE_SECONDS = 20.0, 300.0
"""Statistics read all buckets, so they are kept: after the first time they are read again beside whoever asks."""

MOST_BUCKETS = 500
"""How many buckets of each order are kept."""

_ORDERS: dict[str, Callable[[BucketStats], float]] = {
    "bytes": lambda bucket: bucket.size,
    "ops_per_row": lambda bucket: bucket.ops_per_row,
    "grown": lambda bucket: bucket.grown,
}


class BucketsRequest(Struct, frozen=True):
    """How many buckets to list, and the largest by what: bytes, ops per row, or ops since the last compaction."""

    limit: Annotated[int, Meta(ge=1, le=MOST_BUCKETS)] = 50
    order: Literal["bytes", "ops_per_row", "grown"] = "bytes"


class BucketResponse(Struct, frozen=True):
    """A bucket with `rows` at present. A new device downloads `ops` with so many `bytes` of JSON, uncompressed. `grown`
    is the number of ops since the last compaction, or since the bucket was created."""

    bucket: str
    definition: str
    rows: int
    ops: int
    bytes: int
    ops_per_row: float
    grown: int


class BucketsResponse(Struct, frozen=True):
    """The largest buckets, all definitions (largest first), tables, history and disk use of the store at `seen`, in
    seconds since 1970. `buckets_total` counts all buckets; `jobs` are the last bulk jobs, compaction included."""

    seen: float
    buckets: tuple[BucketResponse, ...]
    buckets_total: int
    definitions: tuple[DefinitionStats, ...]
    tables: tuple[TableResponse, ...]
    history: HistoryStats
    disk: Disk
    lookups: int
    jobs: tuple[BulkRecord, ...]


class TableResponse(Struct, frozen=True):
    """A table in the store. `compared` says why it is being compared with the source; `left_out` counts rows that are
    too large for devices."""

    name: str
    source: str
    rows: int
    bytes: int
    compared: str | None
    left_out: int


class _Stats(Struct, frozen=True):
    """The part of the statistics that is kept: those of all buckets may be large."""

    largest: dict[str, tuple[BucketResponse, ...]]
    total: int
    stats: StoreStats


class BucketsHandler:
    """Reads the store's statistics, one reading at a time."""

    def __init__(self, settings: AdminSettings) -> None:
        self._kept = Kept(lambda: _read(settings), FRESH_SECONDS, USABLE_SECONDS, "stats")

    def buckets(self, request: BucketsRequest) -> BucketsResponse:
        """List the store's largest buckets, its definitions and tables, and its disk use."""
        try:
            seen = self._kept.get(MOST_SECONDS)
        except TimeoutError:
            what = f"reading all buckets takes longer than the {MOST_SECONDS:.0f} s that a request may take"
            raise ApiError(what, fix="ask again later, or use `headwater store stats`", code=TOO_LONG) from None
        stats = seen.found.stats
        return BucketsResponse(
            seen.at,
            seen.found.largest[request.order][: request.limit],
            seen.found.total,
            tuple(sorted(stats.definitions, key=lambda each: -each.size)),
            tuple(map(_table, stats.tables)),
            stats.history,
            stats.disk,
            stats.lookups,
            stats.jobs,
        )

    def close(self) -> None:
        self._kept.close()


def _read(settings: AdminSettings) -> _Stats:
    stats = open_store(settings.storage).store_stats()
    largest = {}
    for order, measure in _ORDERS.items():
        found = sorted(stats.buckets, key=lambda bucket: (-measure(bucket), bucket.name))[:MOST_BUCKETS]
        largest[order] = tuple(map(_bucket, found))
    return _Stats(largest, len(stats.buckets), replace(stats, buckets=()))


def _bucket(found: BucketStats) -> BucketResponse:
    ratio = round(found.ops_per_row, 2)
    return BucketResponse(found.name, found.definition, found.rows, found.ops, found.size, ratio, found.grown)


def _table(found: TableStats) -> TableResponse:
    compared = None if found.resync is None else str(found.resync)
    return TableResponse(found.name, found.source, found.rows, found.bytes, compared, found.left_out_rows)
