"""Verifies histories and lookups of one source against current rows.

The ops of each bucket are checked, and the rows that they lead to are summed up; so are the memberships of current
rows. If the sums of a bucket differ, either the bucket changed between the two reads, which its newest op shows, or it
is broken. Buckets that changed are checked again, divided into many parts: parts without a newer op have to be equal.

Tasks run on executors. Nothing here imports pyspark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headwater.bulk.bound_table import BoundTable, bind, current_cells, join_keys
from headwater.bulk.contract import BrokenBucket, BrokenLookups, VerifyJob, VerifyOutcome, VerifyTable
from headwater.decode.wire import DecodeError
from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import decode_memberships
from headwater.pipeline.engine import Result, Task, TaskRun
from headwater.pipeline.progress import TaskProgress
from headwater.source.rows.copy import TableChangedError
from headwater.storage.contract.parts import JoinedLookups, PlacedRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater.storage.sql.verify import (
    MODULUS,
    NOT_THE_ROWS,
    NOT_THERE,
    VerifyReader,
    changed_parts,
    examine,
    row_entries,
)
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
        with TaskProgress(job.directory, number, attempt) as progress, open_store(job.store).open_verify() as reader:
            foreign = reader.definitions(job.source_name).foreign
            for key in [head.key for head in reader.heads(self.first, self.end) if head.definition not in foreign]:
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
        with TaskProgress(job.directory, number, attempt) as progress, open_store(job.store).open_verify() as reader:
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
    joined: JoinedLookups

    @classmethod
    def of(cls, job: VerifyJob, stored: StoredTable) -> LookupCheck | None:
        """None when the rules have no lookup over the table."""
        bound = bind(job.plans, job.source_name, stored.relation, job.types, stored.id, job.keys)
        if bound is None or not bound.has_lookups:
            return None
        return cls(stored, bound, frozenset(lookup.name for plan in job.plans for lookup in plan.lookups), job.joined)

    def wrong(self, reader: VerifyReader, batch: Sequence[PlacedRow]) -> list[str]:
        """Ids of rows with wrong lookups. Lookups of other plans do not count."""
        standing = reader.lookups(self.stored.id, [row.row_id for _, row in batch])
        layouts = self.stored.layouts
        # All are read in the last layout here, whatever they were written in
        keys = join_keys(layouts, [*[None] * (len(layouts) - 1), self.bound], (row for _, row in batch))
        bound = self.bound.joined_to(reader.joined(self.joined, keys))
        transform, nothing = bound.transform, set[LookupEntry]()
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
    table: VerifyTable

    def run(self, job: VerifyJob, number: int, attempt: str) -> RowsFound:
        with TaskProgress(job.directory, number, attempt), open_store(job.store).open_verify() as reader:
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
        with TaskProgress(job.directory, number, attempt) as progress, open_store(job.store).open_verify() as reader:
            for batch in reader.rows(self.table.id, self.first, self.end):
                for _, row in batch:
                    if any(member.bucket in self.keys for member in decode_memberships(row.members, row.row_id)):
                        found.append(row.row_id)
                progress.add(len(batch))
        return found


OPS_A_TASK = 200_000
_PARTS = 1 << 12
_ROUNDS = 3


def verify_store(run: TaskRun[VerifyJob], job: VerifyJob) -> VerifyOutcome:
    """Verify everything that the job names. Raises TableChangedError when a table was truncated or created
    meanwhile."""
    return _Verification(run, job).verify()


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of reading both sides: by bucket, the newest op of its history, and the parts that differ."""

    newest: dict[int, int]
    differing: dict[int, set[int]]


class _Verification:
    def __init__(self, run: TaskRun[VerifyJob], job: VerifyJob) -> None:
        self._run = run
        self._job = job
        self._broken: dict[int, BrokenBucket] = {}
        self._lookups: dict[tuple[int, str], None] = {}
        self._ops = self._rows = self._tasks = 0

    def verify(self) -> VerifyOutcome:
        job, retired, ranges = self._job, frozenset[int](), list[tuple[int, int]]()
        if job.buckets:
            with open_store(job.store).open_verify() as reader:
                retired, ranges = reader.retired(), reader.cut(OPS_A_TASK)
        suspects = self._judge(self._look(ranges, None, 1), 1, retired)
        for _ in range(_ROUNDS):
            if not suspects:
                break
            ranges = [(key, key + 1) for key in sorted(suspects)]
            suspects = self._judge(self._look(ranges, frozenset(suspects), _PARTS), _PARTS, retired)
        for found in self._results([LoneLookupsTask(table) for table in job.tables if table.stored is not None]):
            self._lookups |= dict.fromkeys(found.lookups)
        return VerifyOutcome(
            buckets=tuple(self._broken.values()),
            lookups=tuple(BrokenLookups(*place) for place in self._lookups),
            ops=self._ops,
            rows=self._rows,
            application=self._run.application,
            tasks=self._tasks,
        )

    def _look(self, ranges: Sequence[tuple[int, int]], keys: frozenset[int] | None, parts: int) -> _Look:
        """Read the histories, then the rows, of buckets in `ranges`; `keys` has their keys, None for all buckets."""
        sums: Counter[int] = Counter()
        newest: dict[int, int] = {}
        for history in self._results([HistoryTask(*places, parts) for places in ranges]):
            self._ops += history.ops
            newest |= history.newest
            for bucket in history.broken:
                self._broken.setdefault(bucket.key, bucket)
            sums.update(history.sums)
        wanted = keys if self._job.buckets else frozenset[int]()
        members = [
            MembersTask(table, *places, wanted, parts, lookups=keys is None)
            for table in self._job.tables
            for places in table.ranges
        ]
        for task, found in zip(members, self._results(members), strict=True):
            self._rows += found.rows
            self._lookups |= dict.fromkeys(found.lookups)
            own = task.table.stored is not None  # the other rows are in buckets that only their source checks, too
            sums.subtract({place: part for place, part in found.sums.items() if own or place // parts in newest})
        differing: dict[int, set[int]] = {}
        for place, total in sums.items():
            if total % MODULUS:
                differing.setdefault(place // parts, set()).add(place % parts)
        return _Look(newest, differing)

    def _judge(self, look: _Look, parts: int, retired: Collection[int]) -> list[int]:
        """Record the buckets that are broken. Returns those that differ, but may have changed meanwhile."""
        suspects: list[int] = []
        differing = {key: found for key, found in look.differing.items() if key not in self._broken}
        if not differing:
            return []
        with open_store(self._job.store).open_verify() as reader:
            sources = reader.definitions(self._job.source_name).sources
            if set(reader.tables(sources)) != {table.id for table in self._job.tables}:
                raise TableChangedError("a table was truncated or created", str(self._job.store), "it is tried again")
            gone = reader.retired() | frozenset(retired)
            for key, different in differing.items():
                head = reader.head(key)
                since = look.newest.get(key)
                if head is None:
                    if since is None and key not in gone:
                        self._broken[key] = BrokenBucket(key, "", NOT_THERE)
                elif since is None or head.clear_op > since:
                    suspects.append(key)
                elif not different <= changed_parts(reader, key, since, self._job.keys, parts):
                    self._broken[key] = BrokenBucket(key, head.name, NOT_THE_ROWS)
                else:
                    suspects.append(key)
        return suspects

    def _results(self, tasks: Sequence[Task[VerifyJob, Result]]) -> list[Result]:
        self._tasks += len(tasks)
        return self._run.tasks(tasks)
