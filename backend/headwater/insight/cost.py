"""What serving another sync config costs: rows to evaluate, space, and what devices download."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from headwater.insight.diff import Diff, diff_with_rows
from headwater.insight.preview import LookupScan
from headwater.insight.rows import CurrentRows
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import StoreReader
from headwater.sync.request import RequestLimits
from headwater_rules.compiler.compile import Compiled
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import SyncRequest
from headwater_rules.versions import ChangeKind, DefinitionKind, definitions_of, without

SAMPLE = 20_000
MOST_USERS = 200
_LAST_JOBS = 20
_LEAST_ROWS = 1_000  # a job of fewer rows says nothing of the speed


class DefinitionCost(Struct, frozen=True):
    """A bucket definition that changes, and about how many rows and bytes of JSON its buckets have in all; null if that
    is not known. Of a removed one, it is what the store has, and `rows` are ops."""

    name: str
    change: str
    before: str | None
    rows: int | None
    bytes: int | None
    buckets: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """See `headwater.api.admin.trial.CostResponse`. `renamed` has pairs of the former and the new name."""

    same: bool
    rows_evaluated: int
    definitions: tuple[DefinitionCost, ...]
    renamed: tuple[tuple[str, str], ...]
    affected: int
    device_rows: int
    device_bytes: int
    seconds: float | None
    notes: tuple[str, ...]


def cost(
    current: CurrentRows,
    reader: StoreReader,
    served: SyncPlan,
    new: Compiled,
    users: Sequence[str],
    limits: RequestLimits,
) -> Cost:
    """What it costs to serve `new` in place of `served`, while a device of each of `users` is connected."""
    diff = diff_with_rows(current, new, served, file="", against="", allowed=limits.max_buckets, sample=SAMPLE)
    definitions = tuple(_definitions(diff))
    rows = sum(_rows(current, new.plan))
    chosen = users[:MOST_USERS]
    affected, device_rows, device_bytes = _devices(current, reader, (served, new.plan), chosen, _mean(diff), limits)
    scale = len(users) / len(chosen) if chosen else 1.0
    notes = [*current.notes]
    if chosen and not diff.comparison.same:
        notes.append("devices are taken to subscribe to nothing, with no claim but sub in their tokens")
    if diff.missing:
        notes.append(f"not counted are rows that the store does not have yet: those of {', '.join(diff.missing)}")
    return Cost(
        diff.comparison.same,
        rows,
        definitions,
        tuple(_renamed(diff, served, new.plan)),
        round(affected * scale),
        round(device_rows * scale),
        round(device_bytes * scale),
        _seconds(current.store.bulk_records(), rows),
        tuple(notes),
    )


def _definitions(diff: Diff) -> Iterator[DefinitionCost]:
    for side in diff.comparison.definitions:
        if side.kind is not DefinitionKind.BUCKET or side.change is ChangeKind.UNCHANGED:
            continue
        guess, stats = diff.estimates.get(side.name), diff.stored.get(side.name)
        known: tuple[int, int, int] | tuple[None, None, None] = (None, None, None)
        if guess is not None and guess.tables:
            known = guess.rows, guess.size, guess.buckets
        elif stats is not None:
            known = stats.ops, stats.size, stats.buckets
        yield DefinitionCost(side.name, side.change.value, side.before, *known)


def _mean(diff: Diff) -> dict[str, tuple[float, float]]:
    """Rows and bytes of a bucket of each definition, on average: also of those that stay, since whom a lookup gives
    more of their buckets downloads these."""
    found = {name: (each.ops, each.size, each.buckets) for name, each in diff.stored.items()}
    found |= {name: (each.rows, each.size, each.buckets) for name, each in diff.estimates.items() if each.tables}
    return {name: (rows / buckets, size / buckets) for name, (rows, size, buckets) in found.items() if buckets}


def _rows(current: CurrentRows, plan: SyncPlan) -> Iterator[int]:
    """The rows of each table that has to be read for what the store lacks, at most."""
    for table in current.lookup_tables(without(plan, current.complete(plan))):
        bounds = current.store.place_bounds(table.id)
        yield 0 if bounds is None else bounds[1] - bounds[0] + 1


def _renamed(diff: Diff, served: SyncPlan, plan: SyncPlan) -> Iterator[tuple[str, str]]:
    """Definitions that have the rows of a removed one."""
    digests = definitions_of(served)
    gone = {digests[side.name]: side.name for side in diff.comparison.having(ChangeKind.REMOVED)}
    replaced = {side.before for side in diff.comparison.having(ChangeKind.CHANGED) if side.before}
    gone |= {digests[name]: name for name in replaced}
    for side in diff.comparison.having(ChangeKind.ADDED, ChangeKind.CHANGED):
        before = gone.get(definitions_of(plan)[side.name])
        if before is not None:
            yield before, side.name


def _devices(
    current: CurrentRows,
    reader: StoreReader,
    plans: tuple[SyncPlan, SyncPlan],
    users: Iterable[str],
    mean: Mapping[str, tuple[float, float]],
    limits: RequestLimits,
) -> tuple[int, float, float]:
    """How many devices get other buckets, and about how many rows and bytes these have to download, if a bucket has so
    many as is the `mean` of its definition."""
    lookups = [LookupScan(current, plan, current.complete(plan), reader) for plan in plans]
    affected, rows, size = 0, 0.0, 0.0
    for user, devices in Counter(users).items():
        now, then = (
            {
                bucket.name: plan.buckets[bucket.definition].name
                for bucket in resolve(
                    plan,
                    SyncRequest({"sub": user}),
                    read,
                    max_buckets=limits.max_buckets,
                    max_results=limits.max_results,
                ).buckets
            }
            for plan, read in zip(plans, lookups, strict=True)
        )
        if now == then:
            continue
        affected += devices
        for bucket, name in then.items():
            if bucket not in now and name in mean:
                rows += devices * mean[name][0]
                size += devices * mean[name][1]
    return affected, rows, size


def _seconds(records: Sequence[BulkRecord], rows: int) -> float | None:
    """How long evaluating so many rows takes, going by the last bulk jobs."""
    speeds = [
        record.rows / (record.finished - record.started)
        for record in records[-_LAST_JOBS:]
        if record.rows >= _LEAST_ROWS and record.finished > record.started
    ]
    return rows / statistics.median(speeds) if speeds else None
