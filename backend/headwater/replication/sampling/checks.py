"""Checks of the sampling audit: of one bucket's history, of the rows in each bucket, and of rows by the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.decode.copytext import split_line
from headwater.decode.wire import DecodeError
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import is_stub, stored_line
from headwater.oplog.transform import decode_memberships, expected_memberships
from headwater.replication.tables.live import LiveTable
from headwater.storage.contract.parts import CurrentRow, PlacedRow
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
from headwater_rules.results import LookupEntry

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
            self.problem = totals_problem(self._head, self._reduction.checksum, self._reduction.count, self._keys)
        return True


@dataclass(frozen=True, slots=True)
class Verdict:
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
        """Add a history that was read whole."""
        self._newest[head.key] = head.last_op
        for part, total in enumerate(walk.sums):
            if total:
                self._add(head.key, part, total)

    def add_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Add current rows of a table."""
        parts = _FINE if self._suspects else 1
        for row in rows:
            for bucket, part, value in row_entries(table, row, self._keys, parts):
                self._add(bucket, part if bucket in self._suspects else 0, -value)

    def _add(self, bucket: int, part: int, value: int) -> None:
        sums = self._sums.setdefault(bucket, {})
        total = (sums.get(part, 0) + value) % MODULUS
        if total:
            sums[part] = total
        else:
            sums.pop(part, None)

    def judge(self, reader: VerifyReader) -> Verdict:
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
        return Verdict(tuple(broken), frozenset(suspects[:_MOST_SUSPECTS]))


class RowCheck:
    """Checks rows of one table by the rules."""

    def __init__(self, live: LiveTable, plans: Sequence[SyncPlan]) -> None:
        self._live = live
        self._names = frozenset(lookup.name for plan in plans for lookup in plan.lookups)

    def wrong(self, reader: VerifyReader, batch: Sequence[PlacedRow]) -> tuple[list[str], list[str]]:
        """Ids of rows that are not in the buckets that the rules give them, and of those with other lookups."""
        bound = self._live.bound
        ids = [row.row_id for _, row in batch]
        standing = reader.lookups(self._live.id, ids) if bound.has_lookups else {}
        misplaced: list[str] = []
        astray: list[str] = []
        for _, row in batch:
            if is_stub(row.line):
                continue
            try:
                puts, entries, _ = bound.transform.evaluate(self._live.cells(row), row.row_id)
            except DecodeError:
                misplaced.append(row.row_id)
                continue
            right = expected_memberships(puts, bound.transform.keys) == set(decode_memberships(row.members, row.row_id))
            if not right and not self._live.in_right_buckets(row):
                misplaced.append(row.row_id)
            if bound.has_lookups and self._known(standing.get(row.row_id, set())) != set(entries):
                astray.append(row.row_id)
        return misplaced, astray

    def _known(self, entries: set[LookupEntry]) -> set[LookupEntry]:
        return {entry for entry in entries if entry.key.partition("[")[0] in self._names}


def same_row(live: LiveTable, row: CurrentRow, line: str | None) -> bool:
    """Whether a stored row is what the source has, given as its COPY text; None when it has none."""
    if line is None:
        return False
    if is_stub(row.line):
        return is_stub(stored_line(line))
    if row.layout == live.layout:
        return row.line == stored_line(line)
    try:
        return live.cells(row) == split_line(line, len(live.relation.columns))
    except DecodeError:
        return False
