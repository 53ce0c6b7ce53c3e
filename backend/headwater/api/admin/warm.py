"""The sources' tables, kept for some seconds: who types rules asks for them with each key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from cachetools import TTLCache

from headwater.api.kept import Kept, Seen
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

_Described = tuple[tuple[SourceTable, ...], tuple[ComputedFault, ...]]


class WarmSchema:
    """Reads the tables of all sources, and keeps them. While they are asked for, they are read again beside, so that
    nobody waits but the first. Thread-safe."""

    def __init__(
        self, sources: Sequence[SourceSettings], fresh: float = FRESH_SECONDS, usable: float = USABLE_SECONDS
    ) -> None:
        self._sources = [
            replace(source, connect_timeout=min(source.connect_timeout, _CONNECT_SECONDS)) for source in sources
        ]
        self._kept = Kept(lambda: see_schema(self._sources), fresh, usable, "schema")
        self._lock = threading.Lock()
        self._computed: TTLCache[tuple[ComputedTable, ...], _Described]
        self._computed = TTLCache(_MOST_COMPUTED, usable, time.monotonic)

    def tables(self, text: str = "") -> Seen[SeenSchema]:
        """What `see_schema` gives for the text of a sync config, as of a few seconds ago at most. Blocking."""
        warm = self._kept.get()
        schema = warm.found.schema
        tables = tuple(each.table for each in computed_in(text))
        if schema is None or not tables:
            return warm
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
        return Seen(replace(warm.found, schema=schema), warm.at)

    def close(self) -> None:
        self._kept.close()
