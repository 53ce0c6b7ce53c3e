"""Estimates how much devices would download of a new row side, from the rows in the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headwater.insight.rows import CurrentRows, Pages, op_size
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import only

SAMPLE_PAGE = 2_000
PAGE = 50_000
FOLLOWED_BUCKETS = 200_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a definition's buckets would hold: buckets, rows and bytes in total, and rows and bytes of the largest
    bucket. `rows_read` rows of `tables` were evaluated; `exact` if those were all rows."""

    buckets: int
    rows: int
    size: int
    largest_rows: int
    largest_size: int
    rows_read: int
    tables: tuple[str, ...]
    exact: bool


class Tally:
    """Sums up one definition. Counts rows and bytes of each bucket in bounded memory: with many buckets, it tracks a
    half, a quarter, … of them, chosen by the hash of their name."""

    def __init__(self, followed: int = FOLLOWED_BUCKETS) -> None:
        self.rows = 0.0
        self.size = 0.0
        self._most = followed
        self._mask = 0
        self._buckets: dict[str, tuple[int, float, float]] = {}
        self._largest = (0.0, 0.0)

    def add(self, bucket: str, size: int, factor: float) -> None:
        """Add a row of `size` bytes in a bucket, which represents `factor` rows."""
        self.rows += factor
        self.size += factor * size
        if hash(bucket) & self._mask:
            return
        seen, rows, total = self._buckets.get(bucket, (0, 0.0, 0.0))
        self._buckets[bucket] = entry = (seen + 1, rows + factor, total + factor * size)
        self._largest = max(self._largest[0], entry[1]), max(self._largest[1], entry[2])
        if len(self._buckets) > self._most:
            self._mask = self._mask * 2 + 1
            self._buckets = {name: entry for name, entry in self._buckets.items() if not hash(name) & self._mask}

    @property
    def followed(self) -> int:
        """The number of buckets tracked."""
        return len(self._buckets)

    @property
    def largest(self) -> tuple[int, int]:
        """Rows and bytes of the largest tracked bucket, each maximum on its own."""
        return round(self._largest[0]), round(self._largest[1])

    def buckets(self, *, exact: bool) -> int:
        """The number of buckets. When only a sample of rows was added, it estimates the buckets that the sample missed
        from how many buckets were seen once and twice."""
        found = len(self._buckets)
        if not exact:
            once = sum(1 for seen, _, _ in self._buckets.values() if seen == 1)
            twice = sum(1 for seen, _, _ in self._buckets.values() if seen == 2)
            found += once * (once - 1) // (2 * (twice + 1))  # Chao's estimator, bias-corrected
        return min(found * (self._mask + 1), max(round(self.rows), len(self._buckets)))


def estimates(rows: CurrentRows, plan: SyncPlan, names: Collection[str], sample: int | None) -> dict[str, Estimate]:
    """An estimate for each of these bucket definitions of a plan. `sample` limits the rows read per table; None reads
    all."""
    wanted = only(plan, set(names) & {bucket.name for bucket in plan.buckets})
    tables = rows.tables(wanted)
    if sample is None:
        pages = [rows.pages(table, PAGE) for table in tables]
    else:
        pages = [rows.pages(table, SAMPLE_PAGE, max(1, sample // SAMPLE_PAGE)) for table in tables]
    tallies = {bucket.name: Tally() for bucket in wanted.buckets}
    read: dict[int, int] = {}
    with rows.watch("rows", sum(len(each.ranges) for each in pages)) as page_done:
        for each in pages:
            read[each.table.id] = _add(rows, wanted, each, tallies, page_done)
    found = {}
    for name, tally in tallies.items():
        fed_by = {table.id for table in rows.tables(only(wanted, {name}))}
        found[name] = _estimate(tally, [each for each in pages if each.table.id in fed_by], read)
    return found


def _add(
    rows: CurrentRows, plan: SyncPlan, pages: Pages, tallies: dict[str, Tally], page_done: Callable[[], None]
) -> int:
    by_position = [tallies[bucket.name] for bucket in plan.buckets]
    factor = pages.factor
    number = 0
    for row_id, result in rows.results(plan, pages, page_done):
        number += 1
        for put in result.puts:
            by_position[put.definition].add(put.bucket, op_size(put, pages.table, row_id), factor)
    return number


def _estimate(tally: Tally, pages: Sequence[Pages], read: Mapping[int, int]) -> Estimate:
    exact = all(len(each.ranges) == each.of for each in pages)
    rows, size = tally.largest
    return Estimate(
        buckets=tally.buckets(exact=exact),
        rows=round(tally.rows),
        size=round(tally.size),
        largest_rows=rows,
        largest_size=size,
        rows_read=sum(read[each.table.id] for each in pages),
        tables=tuple(each.name for each in pages),
        exact=exact,
    )
