"""One store transaction of live replication."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw
import orjson

from headwater.failpoints import failpoint
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import CLEAR_BODY, OpId, finished_op
from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import CurrentRow, new_row
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, ReplicationProgress
from headwater.storage.shared.common import KEPT_FLUSHES, NAMEABLE
from headwater.storage.shared.segments import number_ops
from headwater.storage.shared.values import as_int
from headwater.storage.sql import bucket_keys as keyed
from headwater.storage.sql import leases, tables
from headwater.storage.sql.bucket_keys import BucketSum, KnownBuckets, Naming
from headwater.storage.sqlite.connection import explained
from headwater.storage.sqlite.cursor import SqliteCursor, insert_run
from headwater_rules.results import LookupEntry

_PUT_ROW = """
insert into rows_{0:d} (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _explaining(
    method: Callable[Concatenate[SqliteFlush, _P], _R],
) -> Callable[Concatenate[SqliteFlush, _P], _R]:
    """Like `sqlite_errors`, but cheap enough for methods that are called often."""

    @functools.wraps(method)
    def wrapped(flush: SqliteFlush, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(flush, *args, **kwargs)
        except apsw.Error as error:
            raise explained(error, flush.path) from error

    return wrapped


class SqliteFlush:
    """See `storage.contract.flush.Flush`."""

    def __init__(self, cursor: SqliteCursor, lease: Lease, known: KnownBuckets, wake: Callable[[], None]) -> None:
        self._cursor = cursor
        self._db = cursor.connection
        self._lease = lease
        self._known = known
        self._naming = Naming(known)
        self._wake = wake
        self._sums: dict[int, BucketSum] = {}
        self._touched_lookups: set[str] = set()
        self._db.execute("begin immediate")
        try:
            leases.check(cursor, lease)
            next_op, retired = self._db.execute("select next_op, retired from state").fetchall()[0]
            self._next_op = as_int(next_op)
            self._known.check(as_int(retired))
        except BaseException:
            self._db.execute("rollback")
            raise
        self._first_op = self._next_op

    @property
    def path(self) -> Path:
        """The store's file."""
        return self._cursor.path

    # rows

    @_explaining
    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        return self.load(table, row_ids, sys.maxsize)[0]

    @_explaining
    def load(self, table: int, row_ids: Sequence[str], room: int) -> tuple[dict[str, CurrentRow], int]:
        sql = f"select row_id, layout, line, members, subkey from rows_{table:d} where row_id = ?"
        found: dict[str, CurrentRow] = {}
        rows = self._db.executemany(sql, [(row_id,) for row_id in row_ids])
        for row in rows:
            loaded = found[row[0]] = new_row(CurrentRow, row)
            room -= len(row[2])
            if room <= 0:
                rows.close(True)
                return found, row_ids.index(loaded.row_id) + 1
        return found, len(row_ids)

    @_explaining
    def copies(self, table: int, content: str) -> list[str]:
        # '#' sorts just before '$', so this range is the content's id and its numbered copies
        sql = f"select row_id from rows_{table:d} where row_id >= ? and row_id < ?"
        return [str(row[0]) for row in self._db.execute(sql, (content, content + "$"))]

    @_explaining
    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        self._db.executemany(_PUT_ROW.format(table), rows)

    @_explaining
    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None:
        self._db.executemany(f"delete from rows_{table:d} where row_id = ?", [(row_id,) for row_id in row_ids])

    def table_members(self, table: int) -> Iterator[tuple[str, str, str | None]]:
        try:
            rows = self._db.execute(f"select row_id, members, subkey from rows_{table:d} where members <> ''")
            for row_id, members, subkey in rows:
                yield str(row_id), str(members), None if subkey is None else str(subkey)
        except apsw.Error as error:
            raise explained(error, self.path) from error

    @_explaining
    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {line: [] for line in lines}
        for row_id, line in self._db.execute(f"select row_id, line from rows_{table:d}"):
            if line in found:
                found[str(line)].append(str(row_id))
        return found

    # lookups

    @_explaining
    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]:
        sql = "select key, output from lookups where table_id = ? and row_id = ?"
        return [LookupEntry(str(key), str(output)) for key, output in self._db.execute(sql, (table, row_id))]

    @_explaining
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
        if len(self._touched_lookups) <= NAMEABLE:  # above that, none is recorded
            self._touched_lookups.update(entry.key for entry in gone + new)

    # ops

    @_explaining
    def append(self, ops: Sequence[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        retired = self._create_buckets({op.bucket for op in ops}, buckets)
        if retired:
            ops = [op for op in ops if op.bucket not in retired]
        single, first = number_ops(ops, self._next_op, self._sums, functools.partial(insert_run, self._db))
        self._db.executemany(
            "insert into ops (id, bucket, line) values (?, ?, ?)",
            ((op_id, bucket, finished_op(op_id, body)) for op_id, (bucket, _, body) in enumerate(single, first)),
        )
        self._next_op = first + len(single)

    def _create_buckets(self, keys: set[int], buckets: Mapping[str, Bucket]) -> set[int]:
        """Create missing buckets. Returns those that do not exist and are not among `buckets`: they were retired."""
        unknown = self._naming.missing(keys.union(bucket.key for bucket in buckets.values()))
        there = self._names("buckets", unknown)
        gone = unknown - there.keys()
        moved = keyed.moved(self._cursor) if gone else {}
        held = {key: name for name, key in moved.items()} | there
        taken = self._naming.taken(buckets.values(), held, self._names("retired_buckets", gone), moved)
        if taken:
            self.rollback()
            keyed.move(self._cursor, self._lease, taken)
        gone &= keys
        new = {bucket.key: bucket for bucket in buckets.values()}
        for key in sorted(gone & new.keys()):
            self._clear(key, self._next_op)
            self._db.execute(
                "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
                " values (?, ?, ?, 0, 1, ?, ?)",
                (*new[key], self._next_op, self._next_op),
            )
            self._next_op += 1
            there[key] = new[key].name
        self._naming.fresh |= there
        return gone - new.keys()

    def _names(self, table: str, keys: set[int]) -> dict[int, str]:
        if not keys:
            return {}  # as usual, and then no statement is run
        rows = self._db.executemany(f"select id, name from {table} where id = ?", [(key,) for key in sorted(keys)])
        return {as_int(key): str(name) for key, name in rows}

    def _clear(self, bucket: int, op_id: int) -> None:
        line = finished_op(op_id, CLEAR_BODY)
        self._db.execute("insert into ops (id, bucket, line) values (?, ?, ?)", (op_id, bucket, line))

    @_explaining
    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        tables.mark_resync(self._cursor, [table], reason)

    @_explaining
    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        self._write_sums()
        for definition in definitions:
            sql = "select id from buckets where definition = ? and last_op > clear_op order by id"
            for (bucket,) in self._db.execute(sql, (definition,)).fetchall():
                key = as_int(bucket)
                self._clear(key, self._next_op)
                self._db.execute(
                    "update buckets set checksum = 0, count = 1, clear_op = ?1, last_op = ?1 where id = ?2",
                    (self._next_op, key),
                )
                self._sums[key] = BucketSum(last_op=self._next_op)
                self._next_op += 1
        query = "select distinct key from lookups where table_id = ? limit ?"
        self._touched_lookups.update(str(row[0]) for row in self._db.execute(query, (table, NAMEABLE + 1)))
        return tables.renew_generation(self._cursor, table)

    @_explaining
    def reset_bucket(self, key: int, bucket: Bucket | None) -> None:
        self._write_sums()
        there = self._db.execute("select 1 from buckets where id = ?", (key,)).fetchone() is not None
        if not there and bucket is None:
            return
        self._db.execute(
            "delete from segment_blobs where bucket = ?1 and id in (select blob from segments where bucket = ?1)",
            (key,),
        )
        self._db.execute("delete from segments where bucket = ?", (key,))
        self._db.execute("delete from ops where bucket = ?", (key,))
        self._clear(key, self._next_op)
        if bucket is not None:
            self._db.execute(
                "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
                " values (?, ?, ?, 0, 1, 0, 0) on conflict (id) do update set name = excluded.name,"
                " definition = excluded.definition",
                bucket,
            )
            self._naming.fresh[key] = bucket.name
        self._db.execute(
            "update buckets set checksum = 0, count = 1, clear_op = ?1, last_op = ?1, compacted_op = ?1,"
            " compacted_count = 0, live_rows = 0 where id = ?2",
            (self._next_op, key),
        )
        self._sums[key] = BucketSum(last_op=self._next_op)
        self._next_op += 1

    # ending

    @_explaining
    def commit(self, source: str, progress: ReplicationProgress) -> Checkpoint:
        failpoint("flush.before_totals")
        self._write_sums()
        if self._touched_lookups and self._next_op == self._first_op:
            self._next_op += 1  # a lookup alone moves the checkpoint too
        last_op = self._next_op - 1
        self._db.execute("update sources set lsn = max(lsn, ?) where tag = ?", (progress.lsn, source))
        if self._next_op > self._first_op:
            self._db.execute("update state set next_op = ?, checkpoint = ?", (self._next_op, last_op))
            self._note_touched(source, progress, last_op)
        leases.extend(self._cursor, self._lease)  # from now, because the transaction may have taken long
        failpoint("flush.before_commit")
        self._db.execute("commit")
        failpoint("flush.after_commit")
        self._known.add(self._naming.fresh)
        self._wake()
        return read_checkpoint(self._db)

    @_explaining
    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")

    def _write_sums(self) -> None:
        self._db.executemany(
            "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = max(last_op, ?)"
            " where id = ?",
            [(s.checksum & 0xFFFFFFFF, s.count, s.last_op, bucket) for bucket, s in self._sums.items()],
        )
        for total in self._sums.values():
            total.checksum = total.count = 0

    def _note_touched(self, source: str, progress: ReplicationProgress, last_op: int) -> None:
        buckets = None
        if len(self._sums) <= NAMEABLE:
            sql = "select name from buckets where id = ?"
            buckets = orjson.dumps([row[0] for row in self._db.executemany(sql, [(b,) for b in self._sums])]).decode()
        lookups = None
        if len(self._touched_lookups) <= NAMEABLE:
            lookups = orjson.dumps(sorted(self._touched_lookups)).decode()
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


def read_checkpoint(connection: apsw.Connection) -> Checkpoint:
    """The visible checkpoint; op id 0 while there is none."""
    row = connection.execute("select checkpoint from state").fetchone()
    op_id = OpId(as_int(row[0]) if row is not None and row[0] is not None else 0)
    positions = connection.execute("select tag, lsn from sources")
    return Checkpoint(op_id, {str(tag): Lsn(as_int(lsn)) for tag, lsn in positions})
