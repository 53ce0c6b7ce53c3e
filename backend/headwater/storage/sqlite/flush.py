"""One store transaction of live replication."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import orjson

from headwater.failpoints import failpoint
from headwater.oplog.op import finished_op
from headwater.oplog.transform import DraftOp
from headwater.storage.contract.parts import CurrentRow, new_row
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Lease, ReplicationProgress
from headwater.storage.shared.common import KEPT_FLUSHES, NAMEABLE, as_int
from headwater.storage.shared.segments import Run
from headwater.storage.sql import leases, tables
from headwater.storage.sql.bucket_keys import KnownBuckets
from headwater.storage.sql.flush import Flush, LookupPlace, PlacedEntry, explaining
from headwater.storage.sql.ops import insert_segments
from headwater.storage.sqlite.connection import begin_write, reading
from headwater.storage.sqlite.cursor import SqliteCursor
from headwater_rules.results import LookupEntry

_MEMBERS_READ = 5_000
_FEW = 10  # rows; to begin to read for each of them is no more than to begin and to end

_PUT_ROW = """
insert into rows_{0:d} (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""


class SqliteFlush(Flush):
    """See `storage.sql.flush.Flush`. Without the lock, each call reads the store as it is then: only the holder of the
    lease writes the rows of its source."""

    def __init__(self, cursor: SqliteCursor, lease: Lease, known: KnownBuckets, wake: Callable[[], None]) -> None:
        super().__init__(cursor, lease, known)
        self._db = cursor.connection
        self._wake = wake
        self._rows: dict[int, dict[str, CurrentRow | None]] = {}  # that are kept back, by table; None when deleted

    # rows

    @explaining
    def load(self, table: int, row_ids: Sequence[str], batch_bytes: int) -> tuple[dict[str, CurrentRow], int]:
        kept, count = self._rows.get(table, {}), len(row_ids)
        stored = [row_id for row_id in row_ids if row_id not in kept] if kept else row_ids
        sql = f"select row_id, layout, line, members, subkey from rows_{table:d} where row_id = ?"
        found: dict[str, CurrentRow] = {}
        with self._snapshot() if len(stored) > _FEW else nullcontext():
            rows = self._db.executemany(sql, [(row_id,) for row_id in stored])
            for row in rows:
                loaded = found[row[0]] = new_row(CurrentRow, row)
                batch_bytes -= len(row[2])
                if batch_bytes <= 0:
                    rows.close(True)
                    count = row_ids.index(loaded.row_id) + 1
                    break
        if kept:
            found.update((row_id, row) for row_id in row_ids[:count] if (row := kept.get(row_id)) is not None)
        return found, count

    def _snapshot(self) -> AbstractContextManager[None]:
        """Around several statements that only read, which then need not begin to read again and again."""
        return nullcontext() if self._db.in_transaction else reading(self._db)

    @explaining
    def copies(self, table: int, content: str) -> list[str]:
        # '#' sorts just before '$', so this range is the content's id and its numbered copies
        end = content + "$"
        stored = self._db.execute(f"select row_id from rows_{table:d} where row_id >= ? and row_id < ?", (content, end))
        found = {str(row[0]) for row in stored}
        for row_id, row in self._rows.get(table, {}).items():
            if content <= row_id < end:
                (found.discard if row is None else found.add)(row_id)
        return list(found)

    @explaining
    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        if rows:
            self._rows.setdefault(table, {}).update((row.row_id, row) for row in rows)
            self._keep(len(rows), sum(len(row.line) + len(row.members) for row in rows))

    @explaining
    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None:
        if row_ids:
            self._rows.setdefault(table, {}).update(dict.fromkeys(row_ids))
            self._keep(len(row_ids), sum(map(len, row_ids)))

    def table_members(self, table: int) -> Iterator[tuple[str, str, str | None]]:
        sql = f"select id, row_id, members, subkey from rows_{table:d} where id > ? order by id limit {_MEMBERS_READ}"
        last, kept = 0, dict(self._rows.get(table, {}))
        while True:
            with self.errors():
                rows = self._db.execute(sql, (last,)).fetchall()
            if not rows:
                break
            last = as_int(rows[-1][0])
            for _, row_id, members, subkey in rows:
                if members and row_id not in kept:
                    yield str(row_id), str(members), None if subkey is None else str(subkey)
        for row in kept.values():
            if row is not None and row.members:
                yield row.row_id, row.members, row.subkey

    @explaining
    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {line: [] for line in lines}
        kept = self._rows.get(table, {})
        for row_id, line in self._db.execute(f"select row_id, line from rows_{table:d}"):
            if line in found and row_id not in kept:
                found[str(line)].append(str(row_id))
        for row in kept.values():
            if row is not None and row.line in found:
                found[row.line].append(row.row_id)
        return found

    def _write_rows(self) -> None:
        rows, self._rows = self._rows, {}
        for table, by_id in rows.items():
            gone = [(row_id,) for row_id, row in by_id.items() if row is None]
            self._db.executemany(f"delete from rows_{table:d} where row_id = ?", gone)
            self._db.executemany(_PUT_ROW.format(table), (row for row in by_id.values() if row is not None))

    # lookups

    def _stored_lookups(self, places: Collection[LookupPlace]) -> dict[LookupPlace, set[LookupEntry]]:
        sql = "select key, output from lookups where table_id = ? and row_id = ?"
        with self._snapshot():
            return {
                place: {LookupEntry(str(key), str(output)) for key, output in self._db.execute(sql, place)}
                for place in places
            }

    def _change_lookups(self, gone: Sequence[PlacedEntry], new: Sequence[PlacedEntry]) -> None:
        self._db.executemany(
            "delete from lookups where key = ? and table_id = ? and row_id = ? and output = ?",
            [(entry.key, table, row_id, entry.output) for table, row_id, entry in gone],
        )
        self._db.executemany(
            "insert into lookups (key, table_id, row_id, output) values (?, ?, ?, ?)",
            [(entry.key, table, row_id, entry.output) for table, row_id, entry in new],
        )

    # ops

    def _lock(self) -> None:
        if self._numbers.next:
            return
        self._turns = begin_write(self._db)
        try:
            leases.check(self._cursor, self._lease)  # a new holder may have written while we waited
            next_op, retired = self._db.execute("select next_op, retired from state").fetchall()[0]
        except BaseException:
            self.rollback()
            raise
        self._numbers.next = self._numbers.first = as_int(next_op)
        self._naming.known.check(as_int(retired))

    def _insert_ops(self, ops: Sequence[DraftOp], first: int) -> None:
        self._db.executemany(
            "insert into ops (id, bucket, line) values (?, ?, ?)",
            ((op_id, bucket, finished_op(op_id, body)) for op_id, (bucket, _, body) in enumerate(ops, first)),
        )

    def _insert_run(self, run: Run) -> None:
        insert_segments(self._cursor, [(run.bucket, run)])

    def _insert_buckets(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        self._db.executemany(
            "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
            " values (?1, ?2, ?3, 0, 1, ?4, ?4)",
            rows,
        )

    # ending

    @explaining
    def commit(self, source: str, progress: ReplicationProgress) -> Checkpoint:
        failpoint("flush.before_totals")
        self._lock()
        self._send()
        numbers = self._numbers
        if self._touched and numbers.next == numbers.first:
            numbers.next += 1  # a lookup alone moves the checkpoint too
        self._db.execute("update sources set lsn = max(lsn, ?) where tag = ?", (progress.lsn, source))
        if numbers.next > numbers.first:
            self._db.execute("update state set next_op = ?, checkpoint = ?", (numbers.next, numbers.next - 1))
            self._note_touched(source, progress, numbers.next - 1)
        leases.extend(self._cursor, self._lease)  # from now, because the transaction may have taken long
        failpoint("flush.before_commit")
        self._db.execute("commit")
        self._give_turn()
        failpoint("flush.after_commit")
        self._naming.known.add(self._naming.fresh)
        self._wake()
        return tables.checkpoint(self._cursor)

    @explaining
    def rollback(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("rollback")
        finally:
            self._give_turn()

    def _give_turn(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.give()

    def _write_sums(self) -> None:
        self._db.executemany(
            "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = max(last_op, ?)"
            " where id = ?",
            [(s.checksum & 0xFFFFFFFF, s.count, s.last_op, bucket) for bucket, s in self._numbers.sums.items()],
        )
        for total in self._numbers.sums.values():
            total.checksum = total.count = 0

    def _note_touched(self, source: str, progress: ReplicationProgress, last_op: int) -> None:
        buckets = None
        if len(self._numbers.sums) <= NAMEABLE:
            sql = "select name from buckets where id = ?"
            buckets = orjson.dumps(
                [row[0] for row in self._db.executemany(sql, [(b,) for b in self._numbers.sums])]
            ).decode()
        lookups = None
        if len(self._touched) <= NAMEABLE:
            lookups = orjson.dumps(sorted(self._touched)).decode()
        self._db.execute(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups) values (?, ?, ?, ?, ?, ?)",
            (last_op, source, progress.lsn, progress.committed_us, buckets, lookups),
        )
        if last_op % 64 == 0:
            self._db.execute(
                "delete from flushes where last_op <= coalesce((select last_op from flushes"
                " order by last_op desc limit 1 offset ?), 0)",
                (KEPT_FLUSHES,),
            )
