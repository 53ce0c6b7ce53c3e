"""Importing into a store in Postgres; see `storage.contract.archive`.

The new store is built in a separate schema, which is renamed at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.archive import DATASETS, ArchiveError, Row, StoreNotEmptyError, StoreState
from headwater.storage.postgres import tables
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control.write_checkpoints import key_digest
from headwater.storage.postgres.migrate import migrate
from headwater.storage.shared.values import as_int

_USED = ("versions", "sources", "tables", "buckets", "leases")


class PostgresLoad:
    """See `storage.contract.archive.Load`."""

    parallel = True

    def __init__(self, target: PostgresAddress) -> None:
        self._target = target
        self._building = replace(target, schema=f"{target.schema}_import")
        self.discard()
        with closing(connect(self._building, "import")) as db, postgres_errors(self._building):
            migrate(db, self._building)

    @property
    def address(self) -> PostgresAddress:
        return self._building

    def finish(self, state: StoreState, counts: Mapping[str, int]) -> None:
        """See `storage.contract.archive.Load`."""
        with closing(connect(self._building, "import")) as db, postgres_errors(self._building):
            db.execute("set enable_seqscan = on")
            ids = [row[0] for row in db.execute("select id from tables").fetchall()]
            for table in ids:
                tables.index_rows(db, table)
                _restart(db, f"rows_{table:d}", "place", _number(db, "max(place)", f"rows_{table:d}"))
            _set_state(db, state)
            _check_counts(db, ids, counts, str(self._target))
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
        with closing(connect(self._target, "import")) as db, postgres_errors(self._target):
            db.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self._building.schema)))


def check_empty(address: PostgresAddress) -> None:
    """See `Backend.check_empty`."""
    with closing(connect(address, "import")) as db, postgres_errors(address):
        used = _used(db, address.schema)
        if used:
            raise _not_empty(address, used)


@contextmanager
def load(address: PostgresAddress) -> Iterator[PostgresLoad]:
    """See `Backend.load`."""
    check_empty(address)
    loading = PostgresLoad(address)
    try:
        yield loading
    finally:
        loading.discard()


def load_rows(address: PostgresAddress, dataset: str, batches: Iterable[Sequence[Row]]) -> None:
    """See `Backend.load_rows`."""
    with closing(connect(address, "import")) as db, postgres_errors(address), db.transaction():
        match dataset:
            case "tables":
                _load_tables(db, batches)
            case "segments":
                _load_segments(db, batches)
            case "rows":
                _load_table_rows(db, batches)
            case "lookups":
                rows: Iterator[Row] = (
                    (key, table, tables.stored_id(str(row_id))[0], output)
                    for batch in batches
                    for key, table, row_id, output in batch
                )
                _copy(db, dataset, tuple(DATASETS[dataset]), rows)
            case "write_checkpoints":
                rows = ((key_digest(str(row[0])), *row) for batch in batches for row in batch)
                _copy(db, dataset, ("digest", *DATASETS[dataset]), rows)
            case _:
                _copy(db, dataset, tuple(DATASETS[dataset]), (row for batch in batches for row in batch))


def _copy(db: psycopg.Connection, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    statement = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with db.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _load_tables(db: psycopg.Connection, batches: Iterable[Sequence[Row]]) -> None:
    for batch in batches:
        for row in batch:
            db.execute(
                "insert into tables (id, source, layouts, fingerprint, resync, resync_detail, state)"
                " overriding system value values (%s, %s, %s, %s, %s, %s, 'active')",
                row,
            )
            tables.create_rows(db, as_int(row[0]))


def _load_table_rows(db: psycopg.Connection, batches: Iterable[Sequence[Row]]) -> None:
    columns = ("place", "row_id", "layout", "line", "members", "subkey", "long_id")
    for batch in batches:
        by_table: dict[int, list[Row]] = {}
        for table, place, row_id, *rest in batch:
            key, long_id = tables.stored_id(str(row_id))
            by_table.setdefault(as_int(table), []).append((place, key, *rest, long_id))
        for table, rows in by_table.items():
            _copy(db, f"rows_{table:d}", columns, rows)


def _load_segments(db: psycopg.Connection, batches: Iterable[Sequence[Row]]) -> None:
    """Load segments. Blobs get new ids from the sequence, which processes that load in parallel share."""
    for batch in batches:
        ids = db.execute(
            "select nextval(pg_get_serial_sequence('segment_blobs', 'id')) from generate_series(1, %s)", [len(batch)]
        ).fetchall()
        numbered = [(number, *row) for (number,), row in zip(ids, batch, strict=True)]
        blobs = [(number, bucket, size, total, bodies) for number, bucket, _, _, _, size, total, bodies in numbered]
        places = [(bucket, first, last, number, sealed) for number, bucket, first, last, sealed, *_ in numbered]
        _copy(db, "segment_blobs", ("id", "bucket", "size", "checksum", "bodies"), blobs)
        _copy(db, "segments", ("bucket", "first_op", "last_op", "blob", "sealed"), places)


def _set_state(db: psycopg.Connection, state: StoreState) -> None:
    db.execute("update meta set value = %s where key = 'secret'", [state.secret])
    db.execute(
        "update state set next_op = greatest(next_op, %s), checkpoint = %s, config = %s",
        [state.next_op, state.checkpoint, state.config],
    )
    db.execute("update write_state set seq = %s", [state.last_write])
    _restart(db, "tables", "id", state.last_table)
    _restart(db, "versions", "id", state.last_version)
    _restart(db, "revocations", "seq", _number(db, "max(seq)", "revocations"))
    _restart(db, "bulk_jobs", "id", _number(db, "max(id)", "bulk_jobs"))


def _restart(db: psycopg.Connection, table: str, column: str, last: int) -> None:
    """Set the next id to `last` + 1."""
    query = sql.SQL("alter table {} alter column {} restart with {}")
    db.execute(query.format(sql.Identifier(table), sql.Identifier(column), last + 1))


def _check_counts(db: psycopg.Connection, ids: Sequence[int], counts: Mapping[str, int], where: str) -> None:
    for dataset in DATASETS:
        names = [f"rows_{table:d}" for table in ids] if dataset == "rows" else [dataset]
        found = sum(_number(db, "count(*)", name) for name in names)
        if found != counts.get(dataset, 0):
            raise ArchiveError(
                f"{found} of {counts.get(dataset, 0)} rows of {dataset} were imported", where, "import it again"
            )


def _number(db: psycopg.Connection, what: str, table: str) -> int:
    query = sql.SQL("select {} from {}").format(sql.SQL(what), sql.Identifier(table))
    return int(db.execute(query).fetchall()[0][0] or 0)


def _used(db: psycopg.Connection, schema: str) -> list[str] | None:
    """The non-empty tables that show that a schema's store was used, or other relations in it; None if there is no such
    schema."""
    if not db.execute("select 1 from pg_namespace where nspname = %s", [schema]).fetchall():
        return None
    if db.execute("select to_regclass(%s)", [f'"{schema}".meta']).fetchall() == [(None,)]:
        others = db.execute("select relname from pg_class where relnamespace = to_regnamespace(%s)", [f'"{schema}"'])
        return [row[0] for row in others.fetchmany(3)]
    there = sql.SQL("select exists (select 1 from {})")
    return [name for name in _USED if db.execute(there.format(sql.Identifier(schema, name))).fetchall()[0][0]]


def _not_empty(address: PostgresAddress, used: Sequence[str]) -> StoreNotEmptyError:
    return StoreNotEmptyError(
        f"there is a store already (it has {', '.join(used)})", str(address), "set another schema, or drop that one"
    )
