"""Checks of the sampling audit: of one bucket's history, of the rows in each bucket, and of rows by the rules and the
source.

A few rows are compared with the source while the stream is followed. Rows that the stream touches are recorded from
before the source is read until the stream has passed the position of the answer. All other rows must then be in the
store as the source had them, or the store is damaged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from headwater.bulk.bound_table import Times, join_keys
from headwater.decode.copytext import split_line
from headwater.decode.wire import DecodeError
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import is_stub, stored_line
from headwater.oplog.lsn import ZERO
from headwater.oplog.row_id import IdentityKind
from headwater.oplog.transform import decode_memberships, expected_memberships
from headwater.replication.jobs.job import JobContext
from headwater.replication.jobs.merge import difference
from headwater.replication.stream.change_log import ChangeLog
from headwater.replication.tables.live import LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.source.rows.probe import ProbeBusyError, ProbeFailedError, SourceProbe
from headwater.storage.contract.parts import CurrentRow, JoinedLookups, PlacedRow
from headwater.storage.sql.verify import (
    MODULUS,
    MOST_ROWS,
    NOT_THE_ROWS,
    NOT_THERE,
    BucketHead,
    DamageError,
    Reduction,
    VerifyReader,
    changed_parts,
    history_lines,
    row_entries,
    totals_problem,
)
from headwater_rules.plan import SyncPlan

_FINE = 1 << 12  # parts of a bucket that changed while it was checked
_MOST_SUSPECTS = 32


class BucketWalk:
    """Reads one history some ops at a time, up to where it ended at first. `sums` count only if it is `whole` at the
    end; `problem` says what is wrong."""

    def __init__(self, head: BucketHead, keys: StoreKeys, parts: int) -> None:
        self._keys = keys
        self._head = head
        self._position = head.clear_op - 1
        self._reduction = Reduction(keys, parts, number=0 if head.ops <= MOST_ROWS else -1)
        self.whole = head.ops <= MOST_ROWS
        self.problem = ""
        self.last_taken = 0

    @property
    def sums(self) -> Sequence[int]:
        return self._reduction.sums

    def take(self, reader: VerifyReader, limit: int) -> bool:
        """Read the next ops, at most `limit`. Returns True when there are no more."""
        self.last_taken = 0
        now = reader.head(self._head.key)
        if now is None or now.clear_op != self._head.clear_op:
            self.whole = False  # cleared or compacted meanwhile: the next cycle checks it again
            return True
        try:
            for op_id, line in history_lines(self._head, reader, self._position):
                if op_id > self._head.last_op:
                    break
                if self.last_taken >= limit:
                    return False
                self._reduction.take(op_id, line)
                self._position = op_id
                self.last_taken += 1
        except DamageError as damage:
            self.problem = str(damage)
        else:
            checksum, count = self._reduction.checksum, self._reduction.count
            self.problem = totals_problem(self._head, checksum, count, self._keys, reader)
        return True


@dataclass(frozen=True, slots=True)
class BucketVerdict:
    """Buckets (key, name, problem) whose ops do not add up to their rows, and those that changed while they were
    checked."""

    broken: tuple[tuple[int, str, str], ...]
    suspects: frozenset[int]


class Sums:
    """What histories lead to less what current rows say, bucket by bucket. `suspects` are summed up in many parts."""

    def __init__(self, keys: StoreKeys, suspects: frozenset[int], retired: frozenset[int]) -> None:
        self._keys = keys
        self._suspects = suspects
        self._retired = retired
        self._newest: dict[int, int] = {}
        self._sums: dict[int, dict[int, int]] = {}

    def parts(self, bucket: int) -> int:
        """Into how many parts the sums of a bucket are divided."""
        return _FINE if bucket in self._suspects else 1

    def add_history(self, head: BucketHead, walk: BucketWalk) -> None:
        self._newest[head.key] = head.last_op
        for part, total in enumerate(walk.sums):
            if total:
                self._add(head.key, part, total)

    def add_rows(self, table: int, rows: Sequence[CurrentRow], *, own: bool) -> None:
        """Rows that are not our `own` count only in buckets whose histories were added: others are checked by their
        source."""
        parts = _FINE if self._suspects else 1
        for row in rows:
            for bucket, part, value in row_entries(table, row, self._keys, parts):
                if own or bucket in self._newest:
                    self._add(bucket, part if bucket in self._suspects else 0, -value)

    def _add(self, bucket: int, part: int, value: int) -> None:
        sums = self._sums.setdefault(bucket, {})
        total = (sums.get(part, 0) + value) % MODULUS
        if total:
            sums[part] = total
        else:
            sums.pop(part, None)

    def judge(self, reader: VerifyReader) -> BucketVerdict:
        """Which buckets are broken: some part differs, and no op since they were read explains it."""
        gone = reader.retired() | self._retired
        broken: list[tuple[int, str, str]] = []
        suspects: list[int] = []
        for key, sums in self._sums.items():
            if not sums:
                continue
            head, since = reader.head(key), self._newest.get(key)
            if head is None and since is None and key not in gone:
                broken.append((key, "", NOT_THERE))
            if head is None or since is None:
                continue
            if head.clear_op > since or sums.keys() <= changed_parts(reader, key, since, self._keys, self.parts(key)):
                suspects.append(key)
            else:
                broken.append((key, head.name, NOT_THE_ROWS))
        return BucketVerdict(tuple(broken), frozenset(suspects[:_MOST_SUSPECTS]))


def wrong_rows(
    live: LiveTable,
    plans: Sequence[SyncPlan],
    reader: VerifyReader,
    batch: Sequence[PlacedRow],
    now: int,
    known: JoinedLookups,
) -> tuple[list[str], list[str]]:
    """Of a table's rows, the ids of those that are not in the buckets that the rules give them, and of those with other
    lookups. `now` is the time at which rows were evaluated last, where rules read the clock; `known` are the lookups of
    the rows that rows are joined to."""
    names = frozenset(lookup.name for plan in plans for lookup in plan.lookups)
    ids = [row.row_id for _, row in batch]
    keys = join_keys(live.layouts, (*live.earlier, live.bound), (row for _, row in batch))
    joined = reader.joined(known, keys)
    bound = live.bound.joined_to(joined)
    times = Times(now, reader.flips(live.id, ids) if bound.has_clock else {}, joined)
    stored = reader.lookups(live.id, ids) if bound.has_lookups else {}
    misplaced: list[str] = []
    astray: list[str] = []
    for _, row in batch:
        if is_stub(row.line):
            continue
        try:
            puts, entries, *_ = bound.transform.evaluate(live.cells(row), row.row_id)
        except DecodeError:
            misplaced.append(row.row_id)
            continue
        right = not bound.has_clock and (
            expected_memberships(puts, bound.transform.keys) == set(decode_memberships(row.members, row.row_id))
        )
        if not right and not live.in_right_buckets(row, times):
            misplaced.append(row.row_id)
        there = {entry for entry in stored.get(row.row_id, ()) if entry.key.partition("[")[0] in names}
        if bound.has_lookups and there != set(entries):
            astray.append(row.row_id)
    return misplaced, astray


# rows by the source

_MISSING_AT_ONCE = 10  # their size is not known
_NO_KEY = "it has no key with an index, by which to look rows up"

Looking = Generator[int, None, list[str]]
"""Yields 0 while it waits for the stream; returns the ids of rows that are wrong."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Why a table was not compared. `failed`: the source refuses to read it so."""

    why: str
    failed: bool = False


class Probing:
    """Checks tables with a key. `left_out` says of all others, and of those that could not be read, why they were not
    compared, or not whole. What failed once is not tried again until `begin`."""

    def __init__(self, context: JobContext) -> None:
        self.left_out: dict[str, NotCompared] = {}
        self._context = context
        self._probe = SourceProbe(context.source)
        self._log: ChangeLog | None = None

    def begin(self) -> None:
        """Try all tables again."""
        self.left_out.clear()

    def close(self) -> None:
        """Release everything. It may be used again."""
        self._probe.close()
        self._forget()

    def _tries(self, live: LiveTable) -> bool:
        keyed = live.identity.kind is IdentityKind.KEY
        if not keyed:
            self.left_out[live.name] = NotCompared(_NO_KEY)
        known = self.left_out.get(live.name)
        return keyed and (known is None or not known.failed)

    @contextmanager
    def _trying(self, live: LiveTable) -> Iterator[None]:
        """Leaves the table out after an error that concerns only it."""
        try:
            yield
        except ProbeBusyError:
            self.left_out[live.name] = NotCompared("it was locked, or took too long to read")
        except (ProbeFailedError, DecodeError) as error:
            self.left_out[live.name] = NotCompared(str(error), failed=True)
        finally:
            self._forget()

    def other_rows(self, live: LiveTable, table: PublishedTable, row_ids: Sequence[str]) -> Looking:
        """Which of these rows are different in the source, or not there. Only rows that differ twice count."""
        if not self._tries(live):
            return []
        suspects: Sequence[str] = row_ids
        found: Sequence[str] = ()
        with self._trying(live):
            for _ in range(2):
                if suspects:
                    suspects = yield from self._different(live, table, suspects)
            found = suspects
        return list(found)

    def missing_rows(self, live: LiveTable, table: PublishedTable, limit: int) -> Generator[int, None, list[str]]:
        """Which keys of the source are not in the store. Also yields how many keys were checked."""
        found: list[str] = []
        if not self._tries(live):
            return found
        with self._trying(live):
            order = self._probe.key_order(table)
            if order is None:
                self.left_out[live.name] = NotCompared(_NO_KEY)
            last: tuple[str, ...] | None = None
            while order is not None and self._same(live):
                self._record(live)
                keys = self._probe.keys_after(table, order, last, limit)
                if not keys:
                    break
                last = tuple(keys[-1][i] or "" for i in order)
                lacking = yield from self._lacking(live, [live.identity.key(key) for key in keys])
                for start in range(0, len(lacking), _MISSING_AT_ONCE):
                    found += yield from self.other_rows(live, table, lacking[start : start + _MISSING_AT_ONCE])
                yield len(keys)
        return found

    def _different(self, live: LiveTable, table: PublishedTable, row_ids: Sequence[str]) -> Looking:
        self._record(live)
        lines = self._probe.rows(table, [_key_of(live, row_id) for row_id in row_ids])
        width = len(live.relation.columns)
        in_source = {live.identity.key(split_line(line, width)): line for line in lines}
        if not (yield from self._arrived(live)):
            return []
        wrong = set(in_source)  # rows that are missing or different
        for row in self._context.stream.stored_rows(live, row_ids):
            line = in_source.get(row.row_id)
            same = line is not None and same_row(live, row, line)
            (wrong.discard if same else wrong.add)(row.row_id)
        return [row_id for row_id in self._untouched(live, row_ids) if row_id in wrong]

    def _lacking(self, live: LiveTable, row_ids: Sequence[str]) -> Looking:
        if not (yield from self._arrived(live)):
            return []
        there = {row.row_id for row in self._context.stream.stored_rows(live, row_ids)}
        return [row_id for row_id in self._untouched(live, row_ids) if row_id not in there]

    def _arrived(self, live: LiveTable) -> Generator[int, None, bool]:
        """Wait until the stream has passed the position of the answer. False when the table changed since."""
        position = self._probe.position()
        while self._context.stream.position < position:
            yield 0
        return self._same(live)

    def _same(self, live: LiveTable) -> bool:
        now = self._context.stream.table(live.relation.oid)
        return now is not None and now.id == live.id and now.layouts == live.layouts

    def _untouched(self, live: LiveTable, row_ids: Iterable[str]) -> list[str]:
        if self._log is None:
            return []
        touches = self._log.of(live.relation.oid)
        return [] if touches.truncated else [row_id for row_id in row_ids if row_id not in touches.rows]

    def _record(self, live: LiveTable) -> None:
        self._forget()
        self._log = ChangeLog(frozenset({live.relation.oid}), self._context.stream.fill)
        self._log.begin_at(ZERO)
        self._context.stream.recording.logs.append(self._log)

    def _forget(self) -> None:
        if self._log is not None:
            self._context.stream.recording.stop(self._log)
            self._log = None


def same_row(live: LiveTable, row: CurrentRow, line: str) -> bool:
    """Whether a stored row is what the source has, given as its COPY text."""
    if row.layout == live.layout and not is_stub(row.line):
        return row.line == stored_line(line)  # not only the same values
    return difference(live, row, split_line(line, len(live.relation.columns))) is None


def _key_of(live: LiveTable, row_id: str) -> list[str]:
    """The values of the key's columns."""
    if len(live.identity.columns) == 1:
        return [row_id]
    return [str(value) for value in orjson.loads(row_id)]
