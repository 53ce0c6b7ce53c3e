"""Verifies histories and lookups against current rows, on Spark.

The ops of each bucket are checked, and the rows that they lead to are summed up; so are the memberships of current
rows. If the sums of a bucket differ, either the bucket changed between the two reads, which its newest op shows, or it
is broken. Buckets that changed are checked again, divided into many parts: parts without a newer op have to be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from headwater.bulk.contract import BrokenBucket, BrokenLookups, TableChangedError, VerifyJob, VerifyOutcome
from headwater.pipeline.engine import Run
from headwater.pipeline.verify_tasks import HistoryFound, HistoryTask, LoneLookupsTask, MembersTask, RowsFound
from headwater.storage.contract.verify import MODULUS, NOT_THE_ROWS, NOT_THERE, changed_parts
from headwater.storage.open import open_backend

OPS_A_TASK = 200_000
_PARTS = 1 << 12
_ROUNDS = 3


def verify_store(run: Run[VerifyJob], job: VerifyJob) -> VerifyOutcome:
    """Verify everything that the job names. Raises TableChangedError when a table was truncated or created
    meanwhile."""
    return _Verification(run, job).run()


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of reading both sides: by bucket, the newest op of its history, and the parts that differ."""

    newest: dict[int, int]
    differing: dict[int, set[int]]


class _Verification:
    def __init__(self, run: Run[VerifyJob], job: VerifyJob) -> None:
        self._work = run
        self._job = job
        self._broken: dict[int, BrokenBucket] = {}
        self._lookups: dict[tuple[int, str], None] = {}
        self._ops = self._rows = self._tasks = 0

    def run(self) -> VerifyOutcome:
        retired: frozenset[int] = frozenset()
        cuts: list[tuple[int, int]] = []
        if self._job.buckets:
            with open_backend(self._job.store).open_verify() as reader:
                retired, cuts = reader.retired(), reader.cut(OPS_A_TASK)
        suspects = self._judge(self._look(cuts, None, 1), 1, retired)
        for _ in range(_ROUNDS):
            if not suspects:
                break
            keys = frozenset(suspects)
            ranges = [(key, key + 1) for key in sorted(keys)]
            suspects = self._judge(self._look(ranges, keys, _PARTS), _PARTS, retired)
        self._lone_lookups()
        return VerifyOutcome(
            buckets=tuple(self._broken.values()),
            lookups=tuple(BrokenLookups(*place) for place in self._lookups),
            ops=self._ops,
            rows=self._rows,
            application=self._work.application,
            tasks=self._tasks,
        )

    def _look(self, ranges: Sequence[tuple[int, int]], keys: frozenset[int] | None, parts: int) -> _Look:
        """Read the histories, then the rows, of buckets in `ranges`; `keys` has their keys, None for all buckets."""
        histories = self._run([HistoryTask(*cut, parts) for cut in ranges])
        rows = self._run(
            [
                MembersTask(table, *places, keys if self._job.buckets else frozenset(), parts, lookups=keys is None)
                for table in self._job.tables
                for places in table.ranges
            ]
        )
        return self._compared(histories, rows, parts)

    def _compared(self, histories: Iterable[HistoryFound], rows: Iterable[RowsFound], parts: int) -> _Look:
        sums: dict[int, int] = {}
        newest: dict[int, int] = {}
        for history in histories:
            self._ops += history.ops
            newest |= history.newest
            for bucket in history.broken:
                self._broken.setdefault(bucket.key, bucket)
            for place, total in history.sums.items():
                sums[place] = sums.get(place, 0) + total
        for found in rows:
            self._rows += found.rows
            self._lookups |= dict.fromkeys(found.lookups)
            for place, total in found.sums.items():
                sums[place] = sums.get(place, 0) - total
        differing: dict[int, set[int]] = {}
        for place, total in sums.items():
            if total % MODULUS:
                differing.setdefault(place // parts, set()).add(place % parts)
        return _Look(newest, differing)

    def _judge(self, look: _Look, parts: int, retired: Collection[int]) -> list[int]:
        """Note the buckets that are broken. Returns those that differ, but may have changed meanwhile."""
        suspects: list[int] = []
        differing = {key: found for key, found in look.differing.items() if key not in self._broken}
        if not differing:
            return []
        with open_backend(self._job.store).open_verify() as reader:
            if set(reader.tables()) != {table.id for table in self._job.tables}:
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

    def _lone_lookups(self) -> None:
        for found in self._run([LoneLookupsTask(table) for table in self._job.tables if table.stored is not None]):
            self._lookups |= dict.fromkeys(found.lookups)

    def _run(self, tasks: Sequence[HistoryTask] | Sequence[MembersTask] | Sequence[LoneLookupsTask]) -> list:  # type: ignore[type-arg]
        self._tasks += len(tasks)
        return self._work.tasks(tasks)
