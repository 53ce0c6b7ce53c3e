"""What a client gets by one sync config and would get by another, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Raw, Struct

from headwater.errors import HeadwaterError
from headwater.insight.preview import LookupScan, request_failures, request_notes
from headwater.insight.rows import CurrentRows
from headwater.insight.words import count
from headwater.storage.contract.reader import StoreReader
from headwater.sync.request import RequestLimits
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import RowResult, SyncRequest
from headwater_rules.versions import only

_PAGE = 50_000
MOST_ROWS = 500_000
MOST_CHARACTERS = 64 << 20


class ComparisonTooLargeError(HeadwaterError):
    """The client gets too many rows to compare in one answer."""

    code = "HW_8112"


class Difference(Enum):
    """How a row differs: the client gets it, loses it, or gets other columns or values of it."""

    GAINED = "gained"
    LOST = "lost"
    CHANGED = "changed"


class TableCompared(Struct, frozen=True):
    """The rows of a table on the device, now and then."""

    table: str
    now: int
    then: int
    gained: int
    lost: int
    changed: int


class BucketsCompared(Struct, frozen=True):
    """The client's buckets, and how many a device may have."""

    now: int
    then: int
    limit: int


class RowCompared(Struct, frozen=True):
    """A row as the device has it, and would have it."""

    id: str
    change: Difference
    now: Raw | None
    then: Raw | None


@dataclass(frozen=True, slots=True)
class ClientCompared:
    """The difference for a client. `rows` are those of the chosen table that differ, in the order of their ids; None
    without a table. `notes` say what to keep in mind."""

    tables: tuple[TableCompared, ...]
    buckets: BucketsCompared
    rows: tuple[RowCompared, ...] | None
    notes: tuple[str, ...]


Key = tuple[str, str]


@dataclass(slots=True)
class _Side:
    """One sync config: the client's buckets by it, what to say of the request, why it fails, and a digest of each of
    the client's rows by table and id. `kept` are the rows of the chosen table, and `differing` the numbers of rows, by
    table, that are not the same in all buckets that have them."""

    plan: SyncPlan
    buckets: frozenset[str]
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    rows: dict[Key, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    differing: Counter[str] = field(default_factory=Counter)

    def add(self, result: RowResult, chosen: str | None) -> int:
        """Take over what a source row gives the client. Returns the number of characters that are kept of it."""
        kept = 0
        for put in result.puts:
            if put.bucket not in self.buckets:
                continue
            key, digest = (put.table, put.id), hash(put.data)
            self.differing[put.table] += self.rows.get(key, digest) != digest
            self.rows[key] = digest
            if put.table == chosen:
                kept += len(put.data)
                self.kept[put.id] = put.data
        return kept


def compare_client(
    current: CurrentRows,
    reader: StoreReader,
    plans: tuple[SyncPlan, SyncPlan],
    request: SyncRequest,
    limits: RequestLimits,
    chosen: str | None = None,
) -> ClientCompared:
    """What `request` gets by the first plan and by the second. Each row of the store is evaluated by both at the same
    moment, so that what is written meanwhile is no difference. Raises ComparisonTooLargeError."""
    now, then = sides = [_sides(current, reader, plan, (request,), limits)[0] for plan in plans]
    characters = 0
    for side, result in _results(current, sides):
        characters += side.add(result, chosen)
        if len(now.rows) + len(then.rows) > MOST_ROWS or characters > MOST_CHARACTERS:
            what = f"the client gets more than {MOST_ROWS:,} rows, or {MOST_CHARACTERS:,} characters of the table"
            raise ComparisonTooLargeError(what, fix="compare another client, or one with fewer subscriptions")
    buckets = BucketsCompared(len(now.buckets), len(then.buckets), limits.max_buckets)
    rows = None if chosen is None else tuple(_rows(now, then, chosen))
    return ClientCompared(tuple(_tables(now, then)), buckets, rows, (*then.notes, *_uncertain(then), *current.notes))


def _uncertain(side: _Side) -> Iterator[str]:
    """Of which rows nobody can tell here how a device has them: that depends on which op came last."""
    for table, number in side.differing.items():
        if number:
            yield (
                f"{table}: {count(number, 'row')} with the same id in several buckets, and not the same in them; a"
                " device has the one that was written last, which need not be the one compared"
            )


@dataclass(frozen=True, slots=True)
class ClientRows:
    """The ids of a client's rows, by table. `failures` say why its streams give nothing, or less."""

    ids: Mapping[str, frozenset[str]]
    failures: tuple[str, ...]


def client_rows(
    current: CurrentRows, reader: StoreReader, plan: SyncPlan, requests: Sequence[SyncRequest], limits: RequestLimits
) -> list[ClientRows]:
    """What each of these clients would get. Each row of the store is evaluated once. Raises
    ComparisonTooLargeError."""
    sides = _sides(current, reader, plan, requests, limits)
    used = only(plan, {bucket.name for side in sides for bucket in side.plan.buckets})
    pages = [current.pages(table, _PAGE) for table in current.tables(used)]
    for _, _, result in current.scan("rows", used, pages):
        for side in sides:
            side.add(result, None)
        if sum(len(side.rows) for side in sides) > MOST_ROWS:
            raise ComparisonTooLargeError(
                f"the clients get more than {MOST_ROWS:,} rows", fix="run fewer cases at once"
            )
    return [ClientRows(_by_table(side.rows), side.failures) for side in sides]


def _by_table(rows: Iterable[Key]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for table, row_id in rows:
        found.setdefault(table, set()).add(row_id)
    return {table: frozenset(ids) for table, ids in found.items()}


def _sides(
    current: CurrentRows, reader: StoreReader, plan: SyncPlan, requests: Sequence[SyncRequest], limits: RequestLimits
) -> list[_Side]:
    lookups, sides = LookupScan(current, plan, current.complete(plan), reader), []
    for request in requests:
        resolution = resolve(plan, request, lookups, max_buckets=limits.max_buckets, max_results=limits.max_results)
        used = only(plan, {plan.buckets[bucket.definition].name for bucket in resolution.buckets})
        names = frozenset(bucket.name for bucket in resolution.buckets)
        failures = request_failures(plan, request, resolution)
        sides.append(_Side(used, names, request_notes(plan, request, resolution), failures))
    return sides


def _results(current: CurrentRows, sides: Sequence[_Side]) -> Iterator[tuple[_Side, RowResult]]:
    """What each row of the store gives by each side that reads its table."""
    readers: dict[int, list[_Side]] = {}
    tables = {}
    for side in sides:
        for table in current.tables(side.plan):
            readers.setdefault(table.id, []).append(side)
            tables[table.id] = table
    pages = [current.pages(table, _PAGE) for table in tables.values()]
    with current.watch("rows", sum(len(each.ranges) for each in pages)) as page_done:
        for each in pages:
            own = readers[each.table.id]
            for _, results in current.results_by([side.plan for side in own], each, page_done):
                yield from zip(own, results, strict=True)


def _difference(key: Key, now: _Side, then: _Side) -> Difference | None:
    before, after = now.rows.get(key), then.rows.get(key)
    if before == after:
        return None
    return Difference.GAINED if before is None else Difference.LOST if after is None else Difference.CHANGED


def _tables(now: _Side, then: _Side) -> Iterator[TableCompared]:
    found: dict[str, list[Difference | None]] = {}
    counts: dict[str, list[int]] = {}
    for key in {**now.rows, **then.rows}:
        found.setdefault(key[0], []).append(_difference(key, now, then))
        both = counts.setdefault(key[0], [0, 0])
        both[0] += key in now.rows
        both[1] += key in then.rows
    for table in sorted(found):
        by_kind = [found[table].count(kind) for kind in (Difference.GAINED, Difference.LOST, Difference.CHANGED)]
        yield TableCompared(table, *counts[table], *by_kind)


def _rows(now: _Side, then: _Side, table: str) -> Iterator[RowCompared]:
    for row_id in sorted({**now.kept, **then.kept}):
        change = _difference((table, row_id), now, then)
        if change is not None:
            yield RowCompared(row_id, change, _raw(now.kept.get(row_id)), _raw(then.kept.get(row_id)))


def _raw(data: str | None) -> Raw | None:
    return None if data is None else Raw(data)
