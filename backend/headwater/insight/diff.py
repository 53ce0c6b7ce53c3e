"""What a sync config would change compared with another one, and how much devices would download,
estimated from the rows in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from headwater.insight.rows import CurrentRows, Pages, op_size
from headwater.storage.open import open_store
from headwater.storage.sql.stats import DefinitionStats
from headwater_rules.compiler.advice import BucketPerRow, ForEverybody, buckets_per_row
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.schema import SourceSchema
from headwater_rules.versions import ChangeKind, Comparison, DefinitionChange, DefinitionKind, compare, only

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


@dataclass(frozen=True, slots=True)
class Diff:
    """What `file` would change compared with `against`. `stored` are the store's statistics by definition, `estimates`
    those of new definitions. `missing` are tables without rows in the store, `unsent` describes what the source lacks
    or keeps from us, `per_row` lists definitions of `file` with one bucket per row, `everybody` those that every user
    gets and `shared` their estimates; `allowed` is the number of buckets a device may have."""

    file: str
    against: str
    comparison: Comparison
    allowed: int
    stored: dict[str, DefinitionStats] = field(default_factory=dict)
    estimates: dict[str, Estimate] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    per_row: tuple[BucketPerRow, ...] = ()
    everybody: tuple[ForEverybody, ...] = ()
    shared: dict[str, Estimate] = field(default_factory=dict)
    unsent: tuple[RuleError, ...] = ()
    notes: tuple[str, ...] = ()

    def buckets(self, found: BucketPerRow) -> int | None:
        """The number of buckets of a definition with one bucket per row; None if it is not known."""
        guess, stats = self.estimates.get(found.definition), self.stored.get(found.definition)
        if guess is not None and guess.tables:
            return guess.buckets
        return None if stats is None else stats.buckets

    def rows(self, found: ForEverybody) -> int | None:
        """The number of rows that every user gets; None if it is not known."""
        guess = self.shared.get(found.definition)
        return None if guess is None or not guess.tables else guess.rows

    def as_dict(self) -> dict[str, object]:
        """The whole answer in a form that can be written as JSON."""
        return {
            "file": self.file,
            "against": self.against,
            "same": self.comparison.same,
            "definitions": [
                self._side(side) for side in self.comparison.definitions if side.kind is DefinitionKind.BUCKET
            ],
            "lookups": [self._side(side) for side in self.comparison.definitions if side.kind is DefinitionKind.LOOKUP],
            "streams": [{**asdict(stream), "change": stream.change.value} for stream in self.comparison.streams],
            "computed_tables": [{"name": name, "change": change.value} for name, change in self.comparison.computed],
            "missing_tables": list(self.missing),
            "one_bucket_per_row": [{**asdict(each), "buckets": self.buckets(each)} for each in self.per_row],
            "for_everybody": [
                {"stream": each.stream, "definition": each.definition, "table": each.table, "rows": self.rows(each)}
                for each in self.everybody
            ],
            "unsent": [finding.to_dict() for finding in self.unsent],
            "notes": list(self.notes),
        }

    def _side(self, side: DefinitionChange) -> dict[str, object]:
        found: dict[str, object] = {
            "name": side.name,
            "change": side.change.value,
            "before": side.before,
            "streams": list(side.streams),
            "tables": [table.written for table in side.tables],
        }
        if side.kind is DefinitionKind.BUCKET:
            stats, guess = self.stored.get(side.before or side.name), self.estimates.get(side.name)
            found["stored"] = None if stats is None else asdict(stats)
            found["to_download"] = None if guess is None or not guess.tables else asdict(guess)
        return found


_OF_SOURCE = {RuleCode.NOT_SENT, RuleCode.PARTLY, RuleCode.NO_TABLE, RuleCode.NO_COLUMN, RuleCode.COLUMN_NOT_SENT}


def of_source(findings: Iterable[RuleError]) -> tuple[RuleError, ...]:
    """The findings about tables and columns that the source lacks, or keeps from us."""
    return tuple(each for each in findings if each.code in _OF_SOURCE)


def compared(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False, advise: bool = False
) -> tuple[Compiled, tuple[RuleError, ...]]:
    """A sync config, and the findings in it as compared with the source's tables. That a table is not published or may
    not be read is no error here, even of a strict config, since it can be mended later. Raises SyncConfigError."""
    try:
        compiled = compile_config(text, schema=schema, allow_missing=allow_missing, advise=advise)
    except SyncConfigError as errors:
        if any(each.code is not RuleCode.NOT_SENT for each in errors.errors):
            raise
        return compile_config(text, advise=advise), errors.findings
    return compiled, compiled.warnings


def diff_with_rows(
    rows: CurrentRows, new: Compiled, other: SyncPlan, *, file: str, against: str, allowed: int, sample: int | None
) -> Diff:
    """What `new`, called `file`, would change compared with `other`, in terms of the store's rows. `sample` limits the
    rows evaluated per table; None evaluates all."""
    plan = new.plan
    comparison = compare(other, plan)
    changed = {
        side.name for side in comparison.having(ChangeKind.ADDED, ChangeKind.CHANGED, kind=DefinitionKind.BUCKET)
    }
    shared = {each.definition for each in new.everybody}
    found = estimates(rows, plan, changed | shared, sample)
    return Diff(
        file=file,
        against=against,
        comparison=comparison,
        allowed=allowed,
        stored={stats.definition: stats for stats in open_store(rows.store.address).definition_stats()},
        estimates={name: guess for name, guess in found.items() if name in changed},
        missing=tuple(rows.missing(plan)),
        per_row=buckets_per_row(plan),
        everybody=new.everybody,
        shared={name: guess for name, guess in found.items() if name in shared},
        notes=tuple(rows.notes),
    )


# estimates


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
    read = Counter[int]()
    by_position = [tallies[bucket.name] for bucket in wanted.buckets]
    for each, row_id, result in rows.scan("rows", wanted, pages):
        read[each.table.id] += 1
        for put in result.puts:
            by_position[put.definition].add(put.bucket, op_size(put, each.table, row_id), each.factor)
    found = {}
    for name, tally in tallies.items():
        fed_by = {table.id for table in rows.tables(only(wanted, {name}))}
        fed = [each for each in pages if each.table.id in fed_by]
        found[name] = _estimate(tally, fed, read, tuple(rows.title(each.table) for each in fed))
    return found


def _estimate(tally: Tally, pages: Sequence[Pages], read: Mapping[int, int], tables: tuple[str, ...]) -> Estimate:
    exact = all(len(each.ranges) == each.of for each in pages)
    rows, size = tally.largest
    return Estimate(
        buckets=tally.buckets(exact=exact),
        rows=round(tally.rows),
        size=round(tally.size),
        largest_rows=rows,
        largest_size=size,
        rows_read=sum(read[each.table.id] for each in pages),
        tables=tables,
        exact=exact,
    )
