"""The sources' tables, kept for some seconds: who types rules asks for them with each key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from cachetools import TTLCache

from headwater.source.catalog.computed import with_computed
from headwater.source.catalog.schema import see_schema
from headwater.source.connect import SourceSettings
from headwater_rules.compiler.compile import computed_in
from headwater_rules.plan import ComputedTable
from headwater_rules.schema import ComputedFault, SeenSchema, SourceTable

FRESH_SECONDS = 3.0
"""Tables that were read this short a time ago are not read again."""

USABLE_SECONDS = 20.0
"""Older ones are not shown: who comes back after a migration must not see what was there before it."""

_CONNECT_SECONDS = 5
_MOST_COMPUTED = 32


@dataclass(frozen=True, slots=True)
class WarmTables:
    """What was seen, and when, in seconds since 1970."""

    seen: SeenSchema
    at: float


class WarmSchema:
    """Reads the tables of all sources, and keeps them. While they are asked for, a thread of its own reads them again,
    so that nobody waits but the first. Thread-safe."""

    def __init__(self, sources: Sequence[SourceSettings]) -> None:
        self._sources = [
            replace(source, connect_timeout=min(source.connect_timeout, _CONNECT_SECONDS)) for source in sources
        ]
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headwater-schema")
        self._kept: tuple[float, WarmTables] | None = None  # with when it was read, by the monotonic clock
        self._reading: Future[WarmTables] | None = None
        self._computed: TTLCache[tuple[ComputedTable, ...], tuple[tuple[SourceTable, ...], tuple[ComputedFault, ...]]]
        self._computed = TTLCache(_MOST_COMPUTED, USABLE_SECONDS, time.monotonic)

    def tables(self, text: str = "") -> WarmTables:
        """What `see_schema` gives for the text of a sync config, as of a few seconds ago at most. Blocking."""
        warm = self._warm()
        tables = tuple(each.table for each in computed_in(text))
        if warm.seen.schema is None or not tables:
            return warm
        schema = warm.seen.schema
        with self._lock:
            found = self._computed.get(tables)
        if found is None:
            answering = [source for source in self._sources if source.tag not in schema.unread]
            described = with_computed(schema, answering, text)
            found = described.tables[len(schema.tables) :], described.faults
            with self._lock:
                self._computed[tables] = found
        more, faults = found
        schema = replace(schema, tables=(*schema.tables, *more), faults=(*schema.faults, *faults))
        return WarmTables(replace(warm.seen, schema=schema), warm.at)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _warm(self) -> WarmTables:
        with self._lock:
            age = float("inf") if self._kept is None else time.monotonic() - self._kept[0]
            if self._kept is not None and age < FRESH_SECONDS:
                return self._kept[1]
            if self._reading is None:
                self._reading = self._pool.submit(self._read)
            if self._kept is not None and age < USABLE_SECONDS:
                return self._kept[1]
            reading = self._reading
        return reading.result()

    def _read(self) -> WarmTables:
        at, began = time.time(), time.monotonic()
        try:
            found = WarmTables(see_schema(self._sources), at)
            with self._lock:
                self._kept = began, found
        finally:
            with self._lock:
                self._reading = None
        return found
