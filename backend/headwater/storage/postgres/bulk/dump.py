"""Exporting a store from Postgres; see `storage.contract.archive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.archive import (
    DATASETS,
    ArchiveError,
    Dump,
    DumpPart,
    DumpView,
    Row,
    StoreState,
    bucket_parts,
    place_parts,
)
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.migrate import migrate
from headwater.storage.postgres.tables import rows_table

_FETCHED = 1_000
_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20

# Everything is read once, so sequential scans are fastest
_BEGIN = """
begin transaction isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = 0;
set local enable_seqscan = on
"""

_QUERIES = {
    "rows": (
        "select {table}::bigint, place, coalesce(long_id, row_id), layout, line, members, subkey from {rows}"
        " where place >= {first} and place <= {last}"
    ),
    "ops": "select bucket, id, line from ops where bucket >= {first} and bucket <= {last} order by bucket, id",
    "segments": (
        "select s.bucket, s.first_op, s.last_op, s.sealed, b.size, b.checksum, b.bodies"
        " from segments s join segment_blobs b on b.id = s.blob where s.bucket >= {first} and s.bucket <= {last}"
        " order by s.bucket, s.first_op"
    ),
    "lookups": (
        "select l.key, l.table_id, coalesce(r.long_id, l.row_id), l.output"
        " from lookups l left join {rows} r on r.row_id = l.row_id where l.table_id = {table}"
    ),
    "tables": "select id, source, layouts, fingerprint, resync, resync_detail from tables where state = 'active'",
}
_COUNTS = (
    "select 'ops', bucket, count(*) from ops group by bucket"
    " union all select 'segments', bucket, count(*) from segments group by bucket order by 1, 2"
)
_STATE = """
select (select value from meta where key = 'secret'), next_op, checkpoint, config,
    (select coalesce(max(id), 0) from tables), (select coalesce(max(id), 0) from versions),
    (select seq from write_state)
from state
"""
_LARGE = ("rows", "ops", "segments", "lookups")


@contextmanager
def dump(address: PostgresAddress) -> Iterator[Dump]:
    """See `Backend.dump`. The open connection holds the snapshot that executors read."""
    with closing(connect(address, "export")) as db, postgres_errors(address):
        if db.execute("select to_regclass('meta')").fetchall() == [(None,)]:
            raise ArchiveError("there is no store", str(address), "check storage")
        migrate(db, address)
        db.execute(_BEGIN)
        snapshot = db.execute("select pg_export_snapshot()").fetchall()[0][0]
        state = StoreState(*db.execute(_STATE).fetchall()[0])
        # Ids are never given out again, even those of deleted versions and generations
        table, version = (
            db.execute(sql.SQL("select last_value from {}").format(_sequence(db, name))).fetchall()[0][0]
            for name in ("tables", "versions")
        )
        state = StoreState(
            state.secret, state.next_op, state.checkpoint, state.config,
            max(state.last_table, table), max(state.last_version, version), state.last_write,
        )  # fmt: skip
        yield Dump(DumpView(address, snapshot), state, tuple(_parts(db)))


def _sequence(db: psycopg.Connection, table: str) -> sql.Composed:
    schema, name = db.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = pg_get_serial_sequence(%s, 'id')::regclass",
        [table],
    ).fetchall()[0]
    return sql.Composed([sql.Identifier(schema, name)])


def _parts(db: psycopg.Connection) -> Iterator[DumpPart]:
    for (table,) in db.execute("select id from tables where state = 'active' order by id").fetchall():
        query = sql.SQL("select min(place), max(place), count(*) from {}").format(rows_table(table))
        first, last, rows = db.execute(query).fetchall()[0]
        if rows:
            yield from place_parts(table, first, last, rows)
        lookups = db.execute("select count(*) from lookups where table_id = %s", [table]).fetchall()[0][0]
        if lookups:
            yield DumpPart("lookups", lookups, table)
    yield from bucket_parts(db.execute(_COUNTS))
    for dataset in DATASETS:
        if dataset not in _LARGE:
            query = sql.SQL("select count(*) from {}").format(sql.Identifier(dataset))
            active = sql.SQL(" where state = 'active'") if dataset == "tables" else sql.SQL("")
            rows = db.execute(query + active).fetchall()[0][0]
            if rows:
                yield DumpPart(dataset, rows)


def read_part(address: PostgresAddress, snapshot: str, part: DumpPart) -> Iterator[list[Row]]:
    """See `Backend.read_part`."""
    with closing(connect(address, "export")) as db, postgres_errors(address):
        db.execute(_BEGIN)
        db.execute(sql.SQL("set transaction snapshot {}").format(snapshot))
        batch: list[Row] = []
        size = 0
        with db.cursor("part", binary=True) as cursor:
            cursor.itersize = _FETCHED
            for row in cursor.execute(_query(part)):
                batch.append(row)
                size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
                if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch


def _query(part: DumpPart) -> sql.Composed:
    query = _QUERIES.get(part.dataset)
    if query is None:
        columns = sql.SQL(", ").join(map(sql.Identifier, DATASETS[part.dataset]))
        return sql.SQL("select {} from {}").format(columns, sql.Identifier(part.dataset))
    return sql.SQL(query).format(table=part.table, rows=rows_table(part.table), first=part.first, last=part.last)
