"""One store transaction of live replication.

Only the holder of a source's lease writes its rows, so only the numbering of ops needs the store's lock: rows are
written before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import orjson
import psycopg
from psycopg import sql

from headwater.failpoints import failpoint
from headwater.oplog.op import finished_op
from headwater.oplog.transform import DraftOp
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Lease, ReplicationProgress
from headwater.storage.postgres.copying import (
    INSERT_RUN,
    ROW_COLUMNS,
    columns,
    copy_lines,
    row_line,
    rows_table,
    run_values,
)
from headwater.storage.postgres.cursor import LINE_APART, POSTGRES, PostgresCursor, stored_id
from headwater.storage.shared.common import KEPT_FLUSHES, NAMEABLE
from headwater.storage.shared.segments import Run
from headwater.storage.shared.turns import turns_at
from headwater.storage.sql import leases
from headwater.storage.sql.bucket_keys import KnownBuckets
from headwater.storage.sql.cursor import named
from headwater.storage.sql.flush import Flush, LookupPlace, Numbers, PlacedEntry, explaining
from headwater.storage.sql.tables import CHECKPOINT, as_checkpoint
from headwater_rules.results import LookupEntry

_FEW = 100  # rows or ops; up to this number they are sent as parameters, with other statements

_PUT = """
insert into {rows} (row_id, layout, line, members, subkey, long_id)
select row_id, layout, line, members, subkey, long_id from {source}
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""

_FEW_ROWS = sql.SQL(
    "unnest(%s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[])"
    " as p (row_id, layout, line, members, subkey, long_id)"
)

_EACH_LOOKUP = "unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) as e (table_id, row_id, key, output)"

_FEW_OPS = "insert into ops (bucket, id, line) select * from unnest(%s::bigint[], %s::bigint[], %s::text[])"

# Large lines are read separately, once it is known how many fit
_LOAD = sql.SQL(
    "select row_id, layout, case when octet_length(line) <= {} then line end, members, subkey, long_id,"
    " octet_length(line) from {} where row_id = any(%s)"
)
_LOAD_LINES = sql.SQL("select row_id, line from {} where row_id = any(%s)")

_EXTEND = (
    f"update leases set expires_at = {POSTGRES.clock_after.format('%s')} where name = %s and epoch = %s returning epoch"
).encode()


def _lookup_columns(entries: Sequence[PlacedEntry]) -> list[list[object]]:
    return columns([(table, stored_id(row_id)[0], *entry) for table, row_id, entry in entries], 4)


def _checking(connection: psycopg.Connection, lease: Lease) -> Callable[[], None]:
    """Begin to check the lease, in a pipeline. Once it was sent, the returned function raises LeaseLostError if the
    lease is no longer ours."""
    return _held(connection.execute(named(leases.CHECK), {"1": lease.name}), lease)


def _extending(connection: psycopg.Connection, lease: Lease) -> Callable[[], None]:
    """Likewise begin to extend it from now."""
    return _held(connection.execute(_EXTEND, [lease.ttl, lease.name, lease.epoch]), lease)


def _held(answer: psycopg.Cursor, lease: Lease) -> Callable[[], None]:
    return lambda: leases.raise_unless_held(answer.fetchone(), lease)


class PostgresFlush(Flush):
    """See `storage.sql.flush.Flush`. Has the cursor's connection to itself."""

    def __init__(self, cursor: PostgresCursor, lease: Lease, known: KnownBuckets, sweep: Callable[[], None]) -> None:
        super().__init__(cursor, lease, known)
        self._db = connection = cursor.connection
        self._pending = Pending(connection)
        self._schema = cursor.address.schema
        self._sweep = sweep
        self._left_generation = False
        try:
            with connection.pipeline():
                connection.execute("begin")
                held = _checking(connection, lease)
            held()
        except BaseException:
            self.rollback()
            raise

    # rows

    @explaining
    def load(self, table: int, row_ids: Sequence[str], batch_bytes: int) -> tuple[dict[str, CurrentRow], int]:
        keys = [stored_id(row_id)[0] for row_id in row_ids]
        rows = self._pending.ask(_LOAD.format(LINE_APART, rows_table(table)), [keys])
        count = len(row_ids)
        if sum(row[6] for row in rows) > batch_bytes:
            sizes = {(row[5] or row[0]): row[6] for row in rows}
            count = max(1, sum(size <= batch_bytes for size in accumulate(sizes.get(row_id, 0) for row_id in row_ids)))
            kept = set(row_ids[:count])
            rows = [row for row in rows if (row[5] or row[0]) in kept]
        apart = [row[0] for row in rows if row[2] is None]
        lines: dict[str, str] = {}
        if apart:
            lines = dict(self._db.execute(_LOAD_LINES.format(rows_table(table)), [apart]).fetchall())
        return {
            (long_id or key): CurrentRow(long_id or key, layout, lines[key] if line is None else line, members, subkey)
            for key, layout, line, members, subkey, long_id, _ in rows
        }, count

    @explaining
    def copies(self, table: int, content: str) -> list[str]:
        # '#' sorts just before '$', so this range is the content's id and its numbered copies
        query = sql.SQL("select row_id from {} where row_id >= %s and row_id < %s").format(rows_table(table))
        return [str(row[0]) for row in self._pending.ask(query, [content, content + "$"])]

    @explaining
    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        if not rows:
            return
        size = sum(len(row.line) for row in rows)
        if len(rows) <= _FEW and size <= MOST_CHARACTERS:
            given = [(stored_id(row[0])[0], *row[1:], stored_id(row[0])[1]) for row in rows]
            self._pending.add(self._put(table, _FEW_ROWS), columns(given, 6), size)
            return
        self._pending.send()
        self._db.execute(
            'create temp table if not exists put (row_id text collate "C", layout integer, line text, members text,'
            " subkey text, long_id text) on commit delete rows"
        )
        self._db.execute("truncate put")
        copy_lines(self._db, sql.SQL("copy put {} from stdin").format(ROW_COLUMNS), map(row_line, rows))
        self._db.execute(self._put(table, sql.SQL("put")))

    def _put(self, table: int, source: sql.Composable) -> sql.Composed:
        return sql.SQL(_PUT).format(rows=rows_table(table), source=source)

    @explaining
    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None:
        if row_ids:
            query = sql.SQL("delete from {} where row_id = any(%s)").format(rows_table(table))
            ids = [stored_id(row_id)[0] for row_id in row_ids]
            self._pending.add(query, [ids], sum(map(len, ids)))

    def table_members(self, table: int) -> Iterator[tuple[str, str, str | None]]:
        query = sql.SQL("select coalesce(long_id, row_id), members, subkey from {} where members <> ''")
        with self.errors():
            self._pending.send()
            with self._db.cursor(name=f"members_{table:d}") as cursor:
                cursor.itersize = 5_000
                yield from cursor.execute(query.format(rows_table(table)))

    @explaining
    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {line: [] for line in lines}
        query = sql.SQL("select coalesce(long_id, row_id), line from {} where line = any(%s) order by place")
        for row_id, line in self._pending.ask(query.format(rows_table(table)), [list(found)]):
            found[line].append(row_id)
        return found

    def _write_rows(self) -> None:
        self._pending.send()

    # lookups

    def _stored_lookups(self, places: Collection[LookupPlace]) -> dict[LookupPlace, set[LookupEntry]]:
        by_table: defaultdict[int, dict[str, LookupPlace]] = defaultdict(dict)
        for place in places:
            by_table[place[0]][stored_id(place[1])[0]] = place
        found: dict[LookupPlace, set[LookupEntry]] = {place: set() for place in places}
        query = "select row_id, key, output from lookups where table_id = %s and row_id = any(%s)"
        for table, by_id in by_table.items():
            for row_id, key, output in self._db.execute(query, [table, list(by_id)]).fetchall():
                found[by_id[row_id]].add(LookupEntry(key, output))
        return found

    def _change_lookups(self, gone: Sequence[PlacedEntry], new: Sequence[PlacedEntry]) -> None:
        if gone:
            self._db.execute(
                f"delete from lookups l using {_EACH_LOOKUP} where l.table_id = e.table_id and l.row_id = e.row_id"
                " and l.key = e.key and l.output = e.output",
                _lookup_columns(gone),
            )
        if new:
            self._db.execute(
                f"insert into lookups (table_id, row_id, key, output) select * from {_EACH_LOOKUP}",
                _lookup_columns(new),
            )

    # ops

    def _insert_run(self, run: Run) -> None:
        self._pending.add(INSERT_RUN, run_values(run), len(run.bodies))

    def _insert_ops(self, ops: Sequence[DraftOp], first: int) -> None:
        """Store ops with ids from `first`."""
        size = sum(len(op.body) for op in ops)
        if len(ops) <= _FEW and size <= MOST_CHARACTERS:
            given = [(bucket, op_id, finished_op(op_id, body)) for op_id, (bucket, _, body) in enumerate(ops, first)]
            if given:
                self._pending.add(_FEW_OPS, columns(given, 3), size)
            return
        # A body is JSON, so the only characters that COPY would interpret are backslashes
        lines = (
            f'{bucket}\t{op_id}\t{{"op_id":"{op_id}",' + body.replace("\\", "\\\\")
            for op_id, (bucket, _, body) in enumerate(ops, first)
        )
        copy_lines(self._db, b"copy ops (bucket, id, line) from stdin", lines)

    def _insert_buckets(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        self._db.execute(
            "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
            " select id, name, definition, 0, 1, op, op from unnest(%s::bigint[], %s::text[], %s::text[],"
            " %s::bigint[]) as b (id, name, definition, op)",
            columns(rows, 4),
        )

    def _lock(self) -> None:
        if self._numbers.next:
            return
        turns = turns_at(self._cursor.where)
        with turns.waiting(), self._pending.together() as connection:
            state = connection.execute("select next_op, retired from state for update")
            held = _checking(connection, self._lease)  # a new holder may have written while we waited
        held()
        self._turns = turns
        ((next_op, retired),) = state.fetchall()
        self._numbers.next = self._numbers.first = int(next_op)
        self._naming.known.check(int(retired))

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        self._left_generation = True
        return super().truncate(table, definitions)

    # ending

    @explaining
    def commit(self, source: str, progress: ReplicationProgress) -> Checkpoint:
        failpoint("flush.before_totals")
        self._write_flips()
        self._write_lookups()
        self._write_ops()
        self._write_marks()
        numbers = self._numbers
        if self._touched:
            self._lock()
            if numbers.next == numbers.first:
                numbers.next += 1  # a lookup alone moves the checkpoint too
        with self._pending.together() as connection:
            self._write_sums()
            connection.execute("update sources set lsn = greatest(lsn, %s) where tag = %s", [progress.lsn, source])
            if numbers.next > numbers.first:
                connection.execute("update state set next_op = %s, checkpoint = %s", [numbers.next, numbers.next - 1])
                note_flush(connection, source, progress, numbers, self._touched)
            connection.execute("select pg_notify(%s, '')", [self._schema])
            extended = _extending(connection, self._lease)  # from now: the transaction may have taken long
            reached = connection.execute(CHECKPOINT)
        extended()
        checkpoint = as_checkpoint(reached.fetchall())
        failpoint("flush.before_commit")
        self._db.execute("commit")
        failpoint("flush.after_commit")
        self._naming.known.add(self._naming.fresh)
        if self._left_generation:
            self._sweep()
        return checkpoint

    def rollback(self) -> None:
        if self._db.closed or self._db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            if self._db.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
                self._db.execute("rollback")
            else:
                # Of a pipeline that failed, psycopg takes statements for prepared which never reached the server. It
                # forgets them here
                self._db.rollback()
        except psycopg.Error:
            self._db.close()  # the server rolls back

    def _write_sums(self) -> None:
        rows = [(key, s.checksum & 0xFFFFFFFF, s.count, s.last_op) for key, s in self._numbers.sums.items() if s.count]
        if rows:
            self._db.execute(
                "update buckets b set checksum = (b.checksum + s.checksum) & 4294967295, count = b.count + s.count,"
                " last_op = greatest(b.last_op, s.last_op) from unnest(%s::bigint[], %s::bigint[], %s::bigint[],"
                " %s::bigint[]) as s (id, checksum, count, last_op) where b.id = s.id",
                columns(rows, 4),
            )
        for total in self._numbers.sums.values():
            total.checksum = total.count = 0


# what is sent together


MOST_CHARACTERS = 1 << 20
"""Of what is kept back. More is sent at once."""


Statement = str | sql.SQL | sql.Composed


class Pending:
    """Belongs to one connection and one transaction. Errors of a statement come with whatever sends it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._db = connection
        self._statements: list[tuple[Statement, Sequence[object]]] = []
        self._characters = 0

    def add(self, query: Statement, parameters: Sequence[object], characters: int) -> None:
        """Keep a statement back that has about so many characters."""
        self._statements.append((query, parameters))
        self._characters += characters
        if self._characters > MOST_CHARACTERS:
            self.send()

    def send(self) -> None:
        """Send what was kept back."""
        if self._statements:
            with self.together():
                pass

    def ask(self, query: Statement, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query, which sees all that was added before it."""
        if not self._statements:
            return self._db.execute(query, parameters).fetchall()
        with self.together() as connection:
            cursor = connection.execute(query, parameters)
        return cursor.fetchall()

    @contextmanager
    def together(self) -> Iterator[psycopg.Connection]:
        """Send what was kept back and all that is executed here in one round trip. Results can be fetched afterwards;
        fetched earlier, each takes a round trip."""
        kept, self._statements, self._characters = self._statements, [], 0
        with self._db.pipeline():
            for query, parameters in kept:
                self._db.execute(query, parameters)
            yield self._db


# records of flushes

_NOTE = """
insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)
select %(last_op)s, %(source)s, %(lsn)s, %(committed_us)s, case when %(buckets)s::bigint[] is not null then
    (select coalesce(json_agg(name), '[]') from buckets where id = any(%(buckets)s::bigint[]))::text end, %(lookups)s
"""


def note_flush(
    connection: psycopg.Connection,
    source: str,
    progress: ReplicationProgress,
    numbers: Numbers,
    lookups: Collection[str],
) -> None:
    """Record which buckets and lookup keys a flush touched, if they are not too many to be named. Needs no result, so
    that it can be part of a pipeline."""
    last_op = numbers.next - 1
    connection.execute(
        _NOTE,
        {
            "last_op": last_op,
            "source": source,
            "lsn": progress.lsn,
            "committed_us": progress.committed_us,
            "buckets": list(numbers.sums) if len(numbers.sums) <= NAMEABLE else None,
            "lookups": orjson.dumps(sorted(lookups)).decode() if len(lookups) <= NAMEABLE else None,
        },
    )
    if last_op % 64 == 0:
        connection.execute(
            "delete from flushes where last_op <= coalesce((select last_op from flushes"
            " order by last_op desc limit 1 offset %s), 0)",
            [KEPT_FLUSHES],
        )
