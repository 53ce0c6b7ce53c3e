"""Loading a store into Postgres: it is built in a separate schema, which is renamed at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.archive import ArchivedState, Row, StoreNotEmptyError
from headwater.storage.postgres.cursor import PostgresCursor, key_digest, open_cursor, stored_id
from headwater.storage.postgres.migrate import migrate
from headwater.storage.shared.archive import Load, used_tables
from headwater.storage.sql.cursor import Cursor


class PostgresLoad(Load):
    """See `storage.shared.archive.Load`."""

    def __init__(self, db: PostgresCursor, target: PostgresAddress) -> None:
        super().__init__(db)
        self._cursor = db
        self._target = target
        self.discard()
        migrate(db.connection, db.address)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        match table:
            case "lookups":
                rows = [(key, owner, stored_id(str(row_id))[0], output) for key, owner, row_id, output in rows]
            case "flips":
                rows = [(owner, stored_id(str(row_id))[0], at) for owner, row_id, at in rows]
            case "write_checkpoints":
                columns, rows = ("digest", *columns), [(key_digest(str(row[0])), *row) for row in rows]
            case _:
                pass
        statement = sql.SQL("copy {} ({}) from stdin").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with self._cursor.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def _insert_rows(self, table: str, rows: Sequence[Row]) -> None:
        columns = ("place", "layout", "line", "members", "subkey", "row_id", "long_id")
        self._insert(table, columns, [(place, *rest, *stored_id(str(row_id))) for place, row_id, *rest in rows])

    def _set_ids(self, db: Cursor, state: ArchivedState) -> None:
        db.execute("update meta set value = ? where key = 'secret'", state.secret)
        _restart(db, "tables", "id", state.last_table)
        _restart(db, "versions", "id", state.last_version)
        counted = [("revocations", "seq"), ("changes", "id"), ("bulk_jobs", "id"), ("segment_blobs", "id")]
        counted += [(f"rows_{table:d}", "place") for (table,) in db.rows("select id from tables")]
        for table, column in counted:
            _restart(db, table, column, db.rows(f"select coalesce(max({column}), 0) from {table}")[0][0])

    def finish(self, state: ArchivedState, counts: Mapping[str, int]) -> None:
        db, target = self._cursor, self._target
        self._complete(db, state, counts, str(target))
        db.script("analyze")
        with db.transaction():
            used = _used(db, target.schema)
            if used:
                raise _not_empty(target, used)
            if used is not None:
                _drop(db, target.schema)
            rename = sql.SQL("alter schema {} rename to {}")
            names = sql.Identifier(db.address.schema), sql.Identifier(target.schema)
            db.connection.execute(rename.format(*names))

    def discard(self) -> None:
        _drop(self._cursor, self._cursor.address.schema)


def _drop(db: PostgresCursor, schema: str) -> None:
    with db.errors():
        db.connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))


def check_empty(address: PostgresAddress) -> None:
    """See `Store.check_empty`."""
    with closing(open_cursor(address, "import")) as db:
        used = _used(db, address.schema)
    if used:
        raise _not_empty(address, used)


@contextmanager
def load(address: PostgresAddress) -> Iterator[PostgresLoad]:
    """See `Store.load`."""
    check_empty(address)
    building = replace(address, schema=f"{address.schema}_import")
    with closing(open_cursor(building, "import")) as db, db.errors():
        loading = PostgresLoad(db, address)
        try:
            yield loading
        finally:
            loading.discard()


def _restart(db: Cursor, table: str, column: str, last: int) -> None:
    """Set the next id to the one after `last`."""
    db.script(f"alter table {table} alter column {column} restart with {last + 1:d}")


def _used(db: Cursor, schema: str) -> list[str] | None:
    """The non-empty tables that show that a schema's store was used, or other relations in it; None if there is no such
    schema."""
    if not db.rows("select 1 from pg_namespace where nspname = ?", schema):
        return None
    if db.rows("select to_regclass(?)", f'"{schema}".meta') == [(None,)]:
        others = "select relname from pg_class where relnamespace = to_regnamespace(?) limit 3"
        return [name for (name,) in db.rows(others, f'"{schema}"')]
    return used_tables(db, f'"{schema}".')


def _not_empty(address: PostgresAddress, used: Sequence[str]) -> StoreNotEmptyError:
    return StoreNotEmptyError(
        f"there is a store already (it has {', '.join(used)})", str(address), "set another schema, or drop that one"
    )
