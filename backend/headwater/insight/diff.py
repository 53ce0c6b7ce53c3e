"""What a sync config would change compared with another one, and how much devices would download."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from headwater.insight.estimate import Estimate, estimates
from headwater.insight.rows import CurrentRows
from headwater.storage.open import open_store
from headwater.storage.sql.stats import DefinitionStats
from headwater_rules.compiler.advice import BucketPerRow, ForEverybody, buckets_per_row
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, RuleError, RuleErrors
from headwater_rules.plan import SyncPlan
from headwater_rules.schema import SourceSchema
from headwater_rules.versions import ChangeKind, Comparison, DefinitionChange, DefinitionKind, compare


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
            "definitions": [self._side(side) for side in self.comparison.sides if side.kind is DefinitionKind.BUCKET],
            "lookups": [self._side(side) for side in self.comparison.sides if side.kind is DefinitionKind.LOOKUP],
            "streams": [{**asdict(stream), "change": stream.change.value} for stream in self.comparison.streams],
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
            "tables": [f"{table.schema}.{table.name}" for table in side.tables],
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
    not be read is no error here, even of a strict config, since it can be mended later. Raises RuleErrors."""
    try:
        compiled = compile_config(text, schema=schema, allow_missing=allow_missing, advise=advise)
    except RuleErrors as errors:
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
