"""The tasks of a verification: sum up histories of buckets and memberships of current rows, and check lookups by the
rules. Runs on executors and imports no pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.bulk.bound_table import BoundTable, bind, current_cells
from headwater.bulk.contract import BrokenBucket, VerifyJob, VerifyTable
from headwater.decode.wire import DecodeError
from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import decode_members
from headwater.pipeline.progress import TaskProgress
from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.contract.verify import MODULUS, VerifyReader, examine, row_entries
from headwater.storage.open import open_backend
from headwater_rules.results import LookupEntry


@dataclass(slots=True)
class HistoryFound:
    """The result for the histories of some buckets. `newest` is the last op of each, by key; `sums` are the sums of
    their rows, by the bucket's key times the number of parts plus the part."""

    ops: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    broken: list[BrokenBucket] = field(default_factory=list)


@dataclass(slots=True)
class RowsFound:
    """The result for current rows: `sums` as for histories, and (table, row id) of rows with wrong lookups."""

    rows: int = 0
    sums: dict[int, int] = field(default_factory=dict)
    lookups: list[tuple[int, str]] = field(default_factory=list)

    def add(self, place: int, value: int) -> None:
        self.sums[place] = (self.sums.get(place, 0) + value) % MODULUS


@dataclass(frozen=True, slots=True)
class HistoryTask:
    """Check the histories of buckets with keys in [first, end)."""

    first: int
    end: int
    parts: int

    def run(self, job: VerifyJob, number: int, attempt: str) -> HistoryFound:
        found = HistoryFound()
        with TaskProgress(job.directory, number, attempt) as progress, open_backend(job.store).open_verify() as reader:
            for key in [head.key for head in reader.heads(self.first, self.end)]:
                head = reader.head(key)
                if head is None:
                    continue
                examined = examine(head, reader, job.keys, self.parts)
                found.ops += examined.ops
                found.newest[key] = head.last_op
                if examined.problem:
                    found.broken.append(BrokenBucket(key, head.name, examined.problem))
                else:
                    found.sums |= {key * self.parts + part: total for part, total in enumerate(examined.sums) if total}
                progress.add(examined.ops)
        return found


@dataclass(frozen=True, slots=True)
class MembersTask:
    """Check the rows of a table at places [first, end): sum up their memberships in the buckets `keys` (None: all), and
    with `lookups` check their lookups."""

    table: VerifyTable
    first: int
    end: int
    keys: frozenset[int] | None
    parts: int
    lookups: bool

    def run(self, job: VerifyJob, number: int, attempt: str) -> RowsFound:
        found = RowsFound()
        check = LookupCheck.of(job, self.table.stored) if self.lookups and self.table.stored is not None else None
        with TaskProgress(job.directory, number, attempt) as progress, open_backend(job.store).open_verify() as reader:
            for batch in reader.rows(self.table.id, self.first, self.end):
                self._sum_up(batch, job.keys, found)
                if check is not None:
                    found.lookups += [(self.table.id, row_id) for row_id in check.wrong(reader, batch)]
                found.rows += len(batch)
                progress.add(len(batch))
        return found

    def _sum_up(self, batch: Sequence[PlacedRow], keys: StoreKeys, found: RowsFound) -> None:
        wanted, parts = self.keys, self.parts
        if wanted is not None and not wanted:
            return
        for _, row in batch:
            for bucket, part, value in row_entries(self.table.id, row, keys, parts):
                if wanted is None or bucket in wanted:
                    found.add(bucket * parts + part, value)


@dataclass(frozen=True, slots=True)
class LookupCheck:
    """Compares the lookups of rows with what the rules give."""

    stored: StoredTable
    bound: BoundTable
    names: frozenset[str]

    @classmethod
    def of(cls, job: VerifyJob, stored: StoredTable) -> LookupCheck | None:
        """None when the rules have no lookup over the table."""
        bound = bind(job.plans, job.tag, stored.relation, job.types, stored.id, job.keys)
        if bound is None or not bound.has_lookups:
            return None
        return cls(stored, bound, frozenset(lookup.name for plan in job.plans for lookup in plan.lookups))

    def wrong(self, reader: VerifyReader, batch: Sequence[PlacedRow]) -> list[str]:
        """Ids of rows with wrong lookups. Lookups of other plans do not count."""
        standing = reader.lookups(self.stored.id, [row.row_id for _, row in batch])
        transform, nothing = self.bound.transform, set[LookupEntry]()
        wrong = []
        for _, row in batch:
            there = standing.get(row.row_id, nothing)
            try:
                expected = set(transform.evaluate(current_cells(self.stored.layouts, row), row.row_id).lookups)
            except DecodeError:  # the comparison with the source reports the row
                continue
            if there != expected and {e for e in there if e.key.partition("[")[0] in self.names} != expected:
                wrong.append(row.row_id)
        return wrong


@dataclass(frozen=True, slots=True)
class LoneLookupsTask:
    """Find lookups without a row."""

    table: VerifyTable

    def run(self, job: VerifyJob, number: int, attempt: str) -> RowsFound:
        with TaskProgress(job.directory, number, attempt), open_backend(job.store).open_verify() as reader:
            return RowsFound(lookups=[(self.table.id, row_id) for row_id in reader.lone_lookups(self.table.id)])


@dataclass(frozen=True, slots=True)
class BucketRowsTask:
    """Find the rows of a table at places [first, end) that are in any of the buckets `keys`."""

    table: VerifyTable
    first: int
    end: int
    keys: frozenset[int]

    def run(self, job: VerifyJob, number: int, attempt: str) -> list[str]:
        found: list[str] = []
        with TaskProgress(job.directory, number, attempt) as progress, open_backend(job.store).open_verify() as reader:
            for batch in reader.rows(self.table.id, self.first, self.end):
                found += [row.row_id for _, row in batch if in_buckets(row.members, row.row_id, self.keys)]
                progress.add(len(batch))
        return found


def in_buckets(members: str, row_id: str, keys: frozenset[int]) -> bool:
    """Whether stored memberships include any of the buckets."""
    return any(member.bucket in keys for member in decode_members(members, row_id))
