"""Which streams show old rows, because a source of theirs is down, behind or being compared: the errors that the first
line of a connection has about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from headwater.errors import HeadwaterError
from headwater.replication.status import Staleness, find_staleness, find_status
from headwater.storage.contract.reader import StoreReader
from headwater_rules.plan import LookupStage, SyncPlan, TablePattern, tag_of

STALE_SECONDS = 60.0
"""Rows that may be older than this are reported."""

LOOK_SECONDS = 10.0
"""The least time between two looks at what replicators report."""

Errors = Mapping[str, Sequence[Mapping[str, object]]]
"""Errors by the name of a stream."""


class StaleSources:
    """Looks at what the replicators report, when somebody asks and the last look is old. For any thread."""

    def __init__(self, reader: StoreReader, sources: Sequence[str], now: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._sources = sources
        self._now = now
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._seen: dict[tuple[str, str], float] = {}
        self._stale: tuple[Staleness, ...] = ()

    def find(self) -> Sequence[Staleness]:
        """The sources whose rows may be old for more than STALE_SECONDS. Others are not kept waiting by a look."""
        now = self._now()
        if abs(now - self._looked_at) >= LOOK_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._look(now)
            except HeadwaterError:
                pass  # the store can't be read: who asks will hear of it
            finally:
                self._lock.release()
        return self._stale

    def _look(self, now: float) -> None:
        self._looked_at = now
        seen, stale = dict[tuple[str, str], float](), []
        for source in self._sources:
            standing = find_status(source, self._reader.replicator_status(source), None, now)
            found = find_staleness(standing, now, STALE_SECONDS)
            if found is None:
                continue
            key = source, found.code
            seen[key] = since = min(found.since or now, self._seen.get(key, now))
            if now - since > STALE_SECONDS:
                stale.append(replace(found, since=since))
        self._seen, self._stale = seen, tuple(stale)


Reads = Mapping[str, tuple[TablePattern, ...]]
"""By the name of a stream, the tables that its rows, and who gets them, come from."""


def reads_of(plan: SyncPlan) -> Reads:
    """What each stream of a plan reads."""
    found: dict[str, dict[TablePattern, None]] = {}
    for stream in plan.streams:
        tables = found.setdefault(stream.name, {})
        for variant in stream.variants:
            tables |= {side.table: None for bucket in variant.buckets for side in plan.buckets[bucket].sources}
            stages = (stage for stage in variant.stages if isinstance(stage, LookupStage))
            tables |= {plan.lookups[stage.lookup].table: None for stage in stages}
    return {name: tuple(tables) for name, tables in found.items()}


NAMED = 3
"""How many sources a stream has an error for each; of more, it has one for all with the same code."""


def errors_of(reads: Reads, stale: Sequence[Staleness]) -> Errors:
    """The errors of the streams that read what is stale. Sources that a stream reads by a wildcard are not named: their
    tags may be customers', of which a device should know only its own."""
    return {stream: errors for stream, tables in reads.items() if (errors := _errors(tables, stale))}


def _errors(tables: Sequence[TablePattern], stale: Sequence[Staleness]) -> list[Mapping[str, object]]:
    named, by_code = list[Staleness](), dict[str, list[Staleness]]()
    for each in stale:
        concerned = [table for table in tables if _concerns(each, table)]
        if any(table.tag == tag_of(each.source) for table in concerned):
            named.append(each)
        elif concerned:
            by_code.setdefault(each.code, []).append(each)
    if len(named) > NAMED:
        for each in named:
            by_code.setdefault(each.code, []).append(each)
        named = []
    return [*map(_error, named), *(_error_of_some(code, each) for code, each in by_code.items())]


def _concerns(stale: Staleness, table: TablePattern) -> bool:
    tag = tag_of(stale.source)
    if stale.tables is None:
        return table.of(tag)
    return any(table.matches(tag, *name.split(".", 1)) for name in stale.tables if "." in name)


def _error(stale: Staleness) -> Mapping[str, object]:
    since = _iso(stale.since)
    message = f"[{stale.code}] rows of the source {stale.source} may be old since {since}: {stale.why}"
    return {"message": message, "code": stale.code, "source": stale.source, "since": since}


def _error_of_some(code: str, stale: Sequence[Staleness]) -> Mapping[str, object]:
    since = _iso(min(each.since or 0.0 for each in stale))
    return {"message": f"[{code}] rows of some sources may be old since {since}", "code": code, "since": since}


def _iso(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0.0, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
