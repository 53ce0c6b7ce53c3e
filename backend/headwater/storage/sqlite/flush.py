"""One store transaction of live replication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
from headwater.storage.sql.flush import Flush, explaining
from headwater.storage.sql.ops import insert_segments
from headwater.storage.sqlite.connection import begin_write
from headwater.storage.sqlite.cursor import SqliteCursor
from headwater_rules.results import LookupEntry

_PUT_ROW = """
insert into rows_{0:d} (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""


class SqliteFlush(Flush):
    """See `storage.sql.flush.Flush`."""

    def __init__(self, cursor: SqliteCursor, lease: Lease, known: KnownBuckets, wake: Callable[[], None]) -> None:
        super().__init__(cursor, lease, known)
        self._db = cursor.connection
        self._wake = wake
        self._turns = begin_write(self._db)
        try:
            leases.check(cursor, lease)
            next_op, retired = self._db.execute("select next_op, retired from state").fetchall()[0]
            known.check(as_int(retired))
        except BaseException:
            self.rollback()
            raise
        self._numbers.next = self._numbers.first = as_int(next_op)

    # rows

    @explaining
    def load(self, table: int, row_ids: Sequence[str], batch_bytes: int) -> tuple[dict[str, CurrentRow], int]:
        sql = f"select row_id, layout, line, members, subkey from rows_{table:d} where row_id = ?"
        found: dict[str, CurrentRow] = {}
        rows = self._db.executemany(sql, [(row_id,) for row_id in row_ids])
        for row in rows:
            loaded = found[row[0]] = new_row(CurrentRow, row)
            batch_bytes -= len(row[2])
            if batch_bytes <= 0:
                rows.close(True)
                return found, row_ids.index(loaded.row_id) + 1
        return found, len(row_ids)

    @explaining
    def copies(self, table: int, content: str) -> list[str]:
        # '#' sorts just before '$', so this range is the content's id and its numbered copies
        sql = f"select row_id from rows_{table:d} where row_id >= ? and row_id < ?"
        return [str(row[0]) for row in self._db.execute(sql, (content, content + "$"))]

    @explaining
    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        self._db.executemany(_PUT_ROW.format(table), rows)

    @explaining
    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None:
        self._db.executemany(f"delete from rows_{table:d} where row_id = ?", [(row_id,) for row_id in row_ids])

    def table_members(self, table: int) -> Iterator[tuple[str, str, str | None]]:
        with self.errors():
            rows = self._db.execute(f"select row_id, members, subkey from rows_{table:d} where members <> ''")
            for row_id, members, subkey in rows:
                yield str(row_id), str(members), None if subkey is None else str(subkey)

    @explaining
    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {line: [] for line in lines}
        for row_id, line in self._db.execute(f"select row_id, line from rows_{table:d}"):
            if line in found:
                found[str(line)].append(str(row_id))
        return found

    # lookups

    @explaining
    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]:
        sql = "select key, output from lookups where table_id = ? and row_id = ?"
        return [LookupEntry(str(key), str(output)) for key, output in self._db.execute(sql, (table, row_id))]

    @explaining
    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None:
        before, after = set(self.lookup_entries(table, row_id)), set(entries)
        gone, new = sorted(before - after), sorted(after - before)
        self._db.executemany(
            "delete from lookups where key = ? and table_id = ? and row_id = ? and output = ?",
            [(entry.key, table, row_id, entry.output) for entry in gone],
        )
        self._db.executemany(
            "insert into lookups (key, table_id, row_id, output) values (?, ?, ?, ?)",
            [(entry.key, table, row_id, entry.output) for entry in new],
        )
        if len(self._touched) <= NAMEABLE:  # above that, none is recorded
            self._touched.update(entry.key for entry in gone + new)

    # ops

    def _lock(self) -> None:
        """Does nothing: a write transaction has the whole database."""

    def _send(self) -> None:
        self._write_sums()

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
        self._write_sums()
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
