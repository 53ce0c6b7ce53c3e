"""Dumping and loading a store in Postgres; see `storage.contract.archive`.

A loaded store is built in a separate schema, which is renamed at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.archive import ArchivedState, ArchiveError, Dump, Row, StoreNotEmptyError
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.cursor import POSTGRES, PostgresCursor, key_digest, stored_id
from headwater.storage.postgres.migrate import migrate
from headwater.storage.shared.archive import (
    Loader,
    Read,
    active_tables,
    check_counts,
    count_rows,
    dump_batches,
    used_tables,
)
from headwater.storage.sql.tables import index_rows

_FETCHED = 1_000

# Everything is read once, so sequential scans are fastest
_BEGIN = """
begin transaction isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = 0;
set local enable_seqscan = on
"""

# Ids are never given out again, even those of deleted versions and generations: the sequences know the last ones
_STATE = """
select (select value from meta where key = 'secret'), next_op, checkpoint, config,
    (select last_value - (not is_called)::int from tables_id_seq),
    (select last_value - (not is_called)::int from versions_id_seq),
    (select seq from write_state)
from state
"""
_OF_TABLES = {
    "rows": "select {0:d}::bigint, place, coalesce(long_id, row_id), layout, line, members, subkey from rows_{0:d}",
    "lookups": (
        "select l.key, l.table_id, coalesce(r.long_id, l.row_id), l.output"
        " from lookups l left join rows_{0:d} r on r.row_id = l.row_id where l.table_id = {0:d}"
    ),
}


@contextmanager
def dump(address: PostgresAddress) -> Iterator[Dump]:
    """See `Store.dump`."""
    with closing(connect(address, "export")) as db, postgres_errors(address):
        if db.execute("select to_regclass('meta')").fetchall() == [(None,)]:
            raise ArchiveError("there is no store", str(address), "check storage")
        migrate(db, address)
        db.execute(_BEGIN)
        state = ArchivedState(*db.execute(_STATE).fetchall()[0])

        def stream(statement: str) -> Iterator[Row]:
            with db.cursor("dump", binary=True) as cursor:
                cursor.itersize = _FETCHED
                yield from cursor.execute(statement.encode())

        read = _reading(db)
        found = active_tables(read)
        yield Dump(state, count_rows(read, found), dump_batches(stream, found, _OF_TABLES))


def _reading(db: psycopg.Connection) -> Read:
    return lambda statement: db.execute(statement.encode()).fetchall()


class PostgresLoad:
    """See `storage.contract.archive.Load`."""

    def __init__(self, db: psycopg.Connection, target: PostgresAddress, building: PostgresAddress) -> None:
        self._db = db
        self._target = target
        self._building = building
        self._loader = Loader(self)
        self.discard()
        migrate(db, building)
        db.execute("set enable_seqscan = on")

    def add(self, dataset: str, rows: Sequence[Row]) -> None:
        """See `storage.contract.archive.Load`."""
        with self._db.transaction():
            self._loader.add(dataset, rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        match table:
            case "lookups":
                rows = ((key, owner, stored_id(str(row_id))[0], output) for key, owner, row_id, output in rows)
            case "write_checkpoints":
                columns, rows = ("digest", *columns), ((key_digest(str(row[0])), *row) for row in rows)
            case _:
                pass
        statement = sql.SQL("copy {} ({}) from stdin").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with self._db.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def create_rows(self, table: int) -> None:
        self._db.execute(POSTGRES.create_rows.format(table=table).encode())

    def insert_rows(self, table: int, rows: Iterable[Row]) -> None:
        columns = ("place", "layout", "line", "members", "subkey", "row_id", "long_id")
        stored = ((place, *rest, *stored_id(str(row_id))) for place, row_id, *rest in rows)
        self.insert(f"rows_{table:d}", columns, stored)

    def finish(self, state: ArchivedState, counts: Mapping[str, int]) -> None:
        """See `storage.contract.archive.Load`."""
        db = self._db
        loaded = active_tables(_reading(db))
        for table in loaded:
            index_rows(PostgresCursor(db, self._building), table)
            _restart(db, f"rows_{table:d}", "place")
        _set_state(db, state)
        check_counts(count_rows(_reading(db), loaded), counts, str(self._target))
        db.execute("analyze")
        with db.transaction():
            self._move_into_place(db)

    def _move_into_place(self, db: psycopg.Connection) -> None:
        target = sql.Identifier(self._target.schema)
        used = _used(db, self._target.schema)
        if used is not None:
            if used:
                raise _not_empty(self._target, used)
            db.execute(sql.SQL("drop schema {} cascade").format(target))
        db.execute(sql.SQL("alter schema {} rename to {}").format(sql.Identifier(self._building.schema), target))

    def discard(self) -> None:
        """Delete what exists of it."""
        self._db.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self._building.schema)))


def check_empty(address: PostgresAddress) -> None:
    """See `Store.check_empty`."""
    with closing(connect(address, "import")) as db, postgres_errors(address):
        used = _used(db, address.schema)
        if used:
            raise _not_empty(address, used)


@contextmanager
def load(address: PostgresAddress) -> Iterator[PostgresLoad]:
    """See `Store.load`."""
    check_empty(address)
    building = replace(address, schema=f"{address.schema}_import")
    with closing(connect(building, "import")) as db, postgres_errors(building):
        loading = PostgresLoad(db, address, building)
        try:
            yield loading
        finally:
            loading.discard()


def _set_state(db: psycopg.Connection, state: ArchivedState) -> None:
    db.execute("update meta set value = %s where key = 'secret'", [state.secret])
    db.execute(
        "update state set next_op = greatest(next_op, %s), checkpoint = %s, config = %s",
        [state.next_op, state.checkpoint, state.config],
    )
    db.execute("update write_state set seq = %s", [state.last_write])
    _restart(db, "tables", "id", state.last_table)
    _restart(db, "versions", "id", state.last_version)
    for table, column in (("revocations", "seq"), ("bulk_jobs", "id"), ("segment_blobs", "id")):
        _restart(db, table, column)


def _restart(db: psycopg.Connection, table: str, column: str, last: int | None = None) -> None:
    """Set the next id to the one after `last`, by default the highest there is."""
    names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
    if last is None:
        last = int(
            db.execute(sql.SQL("select coalesce(max({column}), 0) from {table}").format(**names)).fetchall()[0][0]
        )
    restart = sql.SQL("alter table {table} alter column {column} restart with {next}")
    db.execute(restart.format(**names, next=last + 1))


def _used(db: psycopg.Connection, schema: str) -> list[str] | None:
    """The non-empty tables that show that a schema's store was used, or other relations in it; None if there is no such
    schema."""
    if not db.execute("select 1 from pg_namespace where nspname = %s", [schema]).fetchall():
        return None
    if db.execute("select to_regclass(%s)", [f'"{schema}".meta']).fetchall() == [(None,)]:
        others = db.execute("select relname from pg_class where relnamespace = to_regnamespace(%s)", [f'"{schema}"'])
        return [row[0] for row in others.fetchmany(3)]
    return used_tables(_reading(db), f'"{schema}".')


def _not_empty(address: PostgresAddress, used: Sequence[str]) -> StoreNotEmptyError:
    return StoreNotEmptyError(
        f"there is a store already (it has {', '.join(used)})", str(address), "set another schema, or drop that one"
    )
