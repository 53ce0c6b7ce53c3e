"""Reads the result of a computed table's query, in one snapshot of the source.

The query is text of the sync config that becomes part of a COPY statement. So it is prepared alone first, which
Postgres does only for a single statement: what it reads as one whole statement can't end the parentheses that it is put
in. The transaction is read only, and a read-only role is enough.

https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import psycopg
import sqlglot
from psycopg import errors, pq
from sqlglot import exp

from headwater.decode.pgoutput import LeftOut
from headwater.errors import HeadwaterError
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.source.connect import SourceSettings, connect, source_errors, text_as_it_is
from headwater.source.head import ping_statement
from headwater.source.rows.copy import TableChangedError, copied_batches
from headwater.source.rows.fetch import any_unseen
from headwater.source.slot import end_of_log
from headwater_rules.plan import COMPUTED, ComputedTable

_log = logging.getLogger(__name__)

_UNSEEN_PAUSE = 0.02
_LONGEST_TIMEOUT = (1 << 31) - 1
"""The milliseconds, 24 days, that Postgres takes."""

Named = tuple[str, str]
"""Schema and name of a table."""


class ComputedTableError(HeadwaterError):
    """A computed table can't be computed as it is. Its rows stay as they were."""

    code = "HW_2701"


@dataclass(frozen=True, slots=True)
class Described:
    """A query's result: the relation that its rows are of (with an oid of 0), and the tables that it reads, by name:
    all that these are partitions of and have as partitions, too. None of the changes of `unseen` are streamed."""

    relation: Relation
    reads: frozenset[Named]
    unseen: tuple[str, ...]


class ComputedResult(Protocol):
    """One result of a query, which is read once. `open`, `lines` and `finish` are called in this order, by any threads;
    when one of them fails, all is released. They raise ComputedTableError where the table is at fault."""

    seen: Lsn
    """After `open`, a position of the source that is not before any of its commits that the result shows."""
    version: str
    """After `open`, the version of what is read, where it is known: the result of the same version is the same."""

    def open(self, wait_for: Collection[int] = ()) -> Described:
        """Settle what is read, which shows the transactions `wait_for` of the source, and describe the result."""

    def lines(self, relation: Relation, batch_bytes: int) -> Iterator[list[str]]:
        """The rows as COPY text, in batches."""

    def finish(self) -> None:
        """Make sure that the rows are those of one moment."""

    def cancel(self) -> None:
        """End what another thread waits for."""

    def close(self) -> None:
        """Release everything."""


class ResultReader:
    """Reads the result of a query in the source: see ComputedResult. Raises errors of the source, too."""

    def __init__(self, settings: SourceSettings, table: ComputedTable, stop: threading.Event) -> None:
        self._settings = settings
        self._table = table
        self._stop = stop
        self._conn: psycopg.Connection | None = None
        self.seen = Lsn(0)
        self.version = ""

    def open(self, wait_for: Collection[int] = ()) -> Described:
        """Take a snapshot that shows the transactions `wait_for`, which the stream has brought, and describe the
        result."""
        try:
            with source_errors(self._settings):
                self._conn = conn = connect(self._settings, application_name="headwater query", patient=True)
                while wait_for and any_unseen(conn, wait_for) and not self._stop.is_set():
                    time.sleep(_UNSEEN_PAUSE)
                conn.execute("begin transaction isolation level repeatable read read only")
                milliseconds = min(round(self._table.refresh.timeout * 1_000), _LONGEST_TIMEOUT)
                conn.execute(b"set local statement_timeout = %d" % milliseconds)
                self.seen = end_of_log(conn)  # the first query takes the snapshot, and then reads the position
                return self._described(conn)
        except BaseException:
            self.close()
            raise

    def lines(self, relation: Relation, batch_bytes: int) -> Iterator[list[str]]:
        """The rows as COPY text, in batches. Rows with text that is not UTF-8 are left out, and logged."""

        def left_out(cells: tuple[str, ...]) -> None:
            _log.error("%s", LeftOut.of(relation, cells))

        assert self._conn is not None
        query = b"copy (" + self._table.query.encode() + b"\n) to stdout"
        try:
            with source_errors(self._settings), text_as_it_is(self._conn):
                yield from copied_batches(
                    self._conn, query, batch_bytes, left_out, lambda result, _: query_failure(self._table, result)
                )
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """End the transaction, and write a record to the log, so that even an idle stream passes `seen`. Raises
        TableChangedError when the rows that were read are those of no moment."""
        assert self._conn is not None
        try:
            with source_errors(self._settings):
                if rewritten := self._conn.execute(_REWRITTEN).fetchall():
                    what = "a table was truncated or rewritten while a query was about to read it"
                    raise TableChangedError(what, rewritten[0][0], "it is read again")
                self._conn.execute("commit")
                self._conn.execute(ping_statement(self._conn.info.server_version))
        finally:
            self.close()

    def cancel(self) -> None:
        """End what another thread waits for."""
        with suppress(psycopg.Error, AttributeError):  # there is no connection, or no longer
            if self._conn is not None:
                self._conn.cancel()

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def _described(self, conn: psycopg.Connection) -> Described:
        query = self._table.query.encode()
        _checked(self._table, conn.pgconn.prepare(b"", query))
        result = _checked(self._table, conn.pgconn.describe_prepared(b""))
        names = [(result.fname(number) or b"").decode() for number in range(result.nfields)]
        check_names(self._table, names)
        columns = tuple(
            Column(name, result.ftype(number), result.fmod(number), name in self._table.key)
            for number, name in enumerate(names)
        )
        after = {*self._table.refresh.after}
        if self._table.refresh.after_read:
            after |= _read_by(conn, self._table)
        relation = Relation(0, COMPUTED, self._table.name, ReplicaIdentity.INDEX, columns)
        families = {name: _family(conn, self._settings, name) for name in sorted(after)}
        unseen = tuple(".".join(name) for name, (_, streamed) in families.items() if not streamed)
        return Described(relation, frozenset[Named]().union(*(names for names, _ in families.values())), unseen)


def check_names(table: ComputedTable, names: Sequence[str]) -> None:
    """Raise ComputedTableError where a table can't have columns of these names."""
    if not names:
        raise fault(table, "the query of a computed table returns no rows", "write a SELECT", "HW_2701")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        what = f"two columns of the result are called {twice[0]}"
        raise fault(table, what, "give one of them another name: `AS …`", "HW_2705")
    if lacking := [name for name in table.key if name not in names]:
        what = f"the result has no column {lacking[0]}, which is of the key"
        raise fault(table, what, f"select it, or correct `key`; there are: {', '.join(names)}", "HW_2705")


def _checked(table: ComputedTable, result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status not in {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}:
        raise query_failure(table, result)
    return result


def tables_read(conn: psycopg.Connection, tables: Collection[ComputedTable]) -> frozenset[Named]:
    """What the queries of computed tables read, and what refreshes them, as the role of the connection sees it: tables
    behind views and in place of partitions their roots, all of which can be published. Raises ComputedTableError."""
    found: set[Named] = set()
    for table in tables:
        _checked(table, conn.pgconn.prepare(b"", table.query.encode()))  # so it is one statement
        found |= {*table.refresh.after, *_read_by(conn, table)}
    schemas, names = zip(*sorted(found), strict=True) if found else ((), ())
    rows = conn.execute(_ROOTS, {"schemas": list(schemas), "names": list(names)}).fetchall()
    return frozenset((schema, name) for schema, name in rows)


_ROOTS = """
select n.nspname::text, c.relname::text
from unnest(%(schemas)s::text[], %(names)s::text[]) w(schema, name)
join pg_namespace m on m.nspname = w.schema join pg_class r on r.relnamespace = m.oid and r.relname = w.name
join pg_class c on c.oid = coalesce(pg_partition_root(r.oid), r.oid) join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
"""


def query_failure(table: ComputedTable, result: pq.abc.PGresult) -> Exception:
    """The error for a result of the server: the table's fault, unless the connection ended. Queries, and functions in
    them, can raise any SQLSTATE."""
    error = errors.error_from_result(result)
    state = error.sqlstate or ""
    if not state or error.diag.severity_nonlocalized != "ERROR":
        return error
    if isinstance(error, errors.QueryCanceled):
        fix = "make it faster, such as by an index, or raise `timeout` under `refresh`"
        return fault(table, f"the query took longer than {table.refresh.timeout:g} s", fix, "HW_2702")
    # A message about a value quotes it
    said = type(error).__name__ if isinstance(error, psycopg.DataError | psycopg.IntegrityError) else ""
    said = said or error.diag.message_primary or type(error).__name__
    fix = "grant it to the role, or correct the query" if state == _DENIED else "correct the query, or what it reads"
    return fault(table, f"Postgres refuses the query: {said}", fix, "HW_2701")


_DENIED = "42501"

# A snapshot does not have the rows that a later TRUNCATE or rewrite left: it finds none. A transaction keeps the locks
# of all that it reads, in functions too, so nobody rewrites it from then on. pg_class is read by the snapshot, the
# function reads the present
_REWRITTEN = """
select l.relation::regclass::text
from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
left join pg_class c on c.oid = l.relation
where l.pid = pg_backend_pid() and l.locktype = 'relation' and (c.oid is null
    or c.relkind in ('r', 'm') and c.relfilenode <> 0 and pg_relation_filenode(c.oid) <> c.relfilenode)
"""


def fault(table: ComputedTable, what: str, fix: str, code: str) -> ComputedTableError:
    """An error of a computed table."""
    return ComputedTableError(what, f"computed table {table.name}", fix, code=code)


def relations_named(query: str) -> list[str]:
    """What a query names in FROM, as Postgres would read it: tables, views, and queries of its own under WITH. Empty
    for one that our parser does not understand."""
    try:
        parsed = sqlglot.parse_one(query, dialect="postgres")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return []
    tables = (table.parts for table in parsed.find_all(exp.Table))
    return sorted({".".join(part.sql(dialect="postgres") for part in parts) for parts in tables})


def _read_by(conn: psycopg.Connection, table: ComputedTable) -> set[Named]:
    explain = b"explain (verbose, format json) " + table.query.encode()
    result = _checked(table, conn.pgconn.exec_params(explain, None))
    return set(_scanned(orjson.loads(result.get_value(0, 0) or b"[]")))


def _scanned(plan: Any) -> Iterator[Named]:
    """The tables in a plan of EXPLAIN (VERBOSE, FORMAT JSON). It has the tables of views in place of these."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            if "Relation Name" in node and "Schema" in node:
                yield node["Schema"], node["Relation Name"]
            waiting += node.values()


# The stream calls a partition by its own name, or by its root's, as its publication says
_FAMILY = """
with recursive up(oid) as (
    select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relname = %(name)s
    union select i.inhparent from up join pg_inherits i on i.inhrelid = up.oid
), family(oid) as (
    select oid from up union select i.inhrelid from family join pg_inherits i on i.inhparent = family.oid
)
select n.nspname::text, c.relname::text, exists (
    select from pg_publication_tables p
    where p.pubname = any(%(publications)s::text[]) and p.schemaname = n.nspname and p.tablename = c.relname)
from family f join pg_class c on c.oid = f.oid join pg_namespace n on n.oid = c.relnamespace
"""


def _family(conn: psycopg.Connection, settings: SourceSettings, table: Named) -> tuple[frozenset[Named], bool]:
    """The table, and all that it is a partition of or has as partitions; and whether any of them is published."""
    named = {"schema": table[0], "name": table[1], "publications": list(settings.publications)}
    rows = conn.execute(_FAMILY, named).fetchall()
    return frozenset({table, *((schema, name) for schema, name, _ in rows)}), any(each[2] for each in rows)
