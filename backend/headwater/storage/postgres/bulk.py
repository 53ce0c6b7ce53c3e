"""What tasks of bulk jobs write into a store in Postgres: tables of their own, which the store takes over on the server
later. They need no durability: a durable table records how many rows they hold, and tables of a failed attempt are
never used."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from headwater.errors import HeadwaterError
from headwater.oplog.transform import Bucket
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.contract.store import Lease
from headwater.storage.postgres.connection import connect
from headwater.storage.postgres.copying import copy_lines, escaped, row_line
from headwater.storage.postgres.cursor import PostgresCursor, drop_part, part_tables, stored_id
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.parts import PageSize, PartWriter, Segment
from headwater_rules.results import LookupEntry

_TABLES = """
drop table if exists {rows}, {lookups}, {buckets}, {segments}, {flips};
delete from staged_parts where path = '{path}';
create unlogged table {rows} (page integer, row_id text collate "C", layout integer, line text, members text,
    subkey text, long_id text);
create unlogged table {lookups} (page integer, key text, row_id text collate "C", output text);
create unlogged table {flips} (page integer, row_id text collate "C", at bigint);
create unlogged table {buckets} (id bigint, name text, definition text);
create unlogged table {segments} (id bigint generated always as identity, page integer, bucket bigint, size bigint,
    checksum bigint, bodies bytea);
alter table {segments} alter column bodies set storage external
"""


def open_part(address: PostgresAddress, table: int, number: int, attempt: str) -> PartWriter:
    """See `Store.open_part`."""
    path = f"stage_{table:d}_{number:d}_{re.sub(r'[^a-z0-9]', '_', attempt.lower())}"
    return PartWriter(StageTables(address, path), StagedPart(path, table, 0, 0, attempt))


class StageTables:
    """The result of one attempt, see `storage.sql.parts.PartStorage`. Batches commit one by one, so that no transaction
    is open while the source is read."""

    def __init__(self, address: PostgresAddress, path: str) -> None:
        self._path = path
        rows, lookups, buckets, segments, flips = part_tables(path)
        self._rows, self._lookups, self._buckets, self._segments, self._flips = rows, lookups, buckets, segments, flips
        self._finished = False
        self._db = PostgresCursor(connect(address, "bulk work"), address)
        try:
            names = {"rows": rows, "lookups": lookups, "buckets": buckets, "segments": segments, "flips": flips}
            self._db.script(_TABLES.format(**names, path=path))
        except BaseException:
            self._db.close()
            raise

    def errors(self) -> AbstractContextManager[None]:
        return self._db.errors()

    def put_rows(self, page: int, rows: Sequence[CurrentRow]) -> None:
        columns = "page, row_id, layout, line, members, subkey, long_id"
        self._copy(self._rows, columns, [f"{page}\t{row_line(row)}" for row in rows])

    def put_lookups(self, page: int, lookups: Sequence[tuple[str, LookupEntry]]) -> None:
        lines = [
            f"{page}\t{escaped(entry.key)}\t{escaped(stored_id(row_id)[0])}\t{escaped(entry.output)}"
            for row_id, entry in lookups
        ]
        self._copy(self._lookups, "page, key, row_id, output", lines)

    def put_flips(self, page: int, flips: Mapping[str, int]) -> None:
        lines = [f"{page}\t{escaped(stored_id(row_id)[0])}\t{at}" for row_id, at in flips.items()]
        self._copy(self._flips, "page, row_id, at", lines)

    def put_buckets(self, buckets: Sequence[Bucket]) -> None:
        lines = [f"{key}\t{escaped(name)}\t{escaped(definition)}" for key, name, definition in buckets]
        self._copy(self._buckets, "id, name, definition", lines)

    def _copy(self, table: str, columns: str, lines: Sequence[str]) -> None:
        copy_lines(self._db.connection, f"copy {table} ({columns}) from stdin".encode(), lines)

    def put_segments(self, page: int, segments: Sequence[Segment]) -> None:
        statement = f"copy {self._segments} (page, bucket, size, checksum, bodies) from stdin (format binary)"
        with self._db.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.set_types(["int4", "int8", "int8", "int8", "bytea"])
            for segment in segments:
                copy.write_row((page, *segment))

    def finish(self, sizes: Sequence[PageSize], *, paged: bool) -> None:
        if paged:
            for table in (self._rows, self._lookups, self._segments, self._flips):
                self._db.script(f"create index on {table} (page)")
        pages = [(self._path, page, *size) for page, size in enumerate(sizes)]
        self._db.execute_many("insert into staged_parts (path, page, rows, ops) values (?, ?, ?, ?)", pages)
        self._finished = True

    def close(self) -> None:
        if not self._finished:
            # The connection may be what failed; `discard_staged` then drops what is left
            with contextlib.suppress(HeadwaterError):
                drop_part(self._db, self._path)
        self._db.close()


def discard(db: Cursor, lease: Lease) -> None:
    """Delete what unfinished jobs of the lease's source left: parts, staged generations, segments and names."""
    with db.transaction(lease):
        owned = db.rows("select id, state = 'staged' from tables where source = ? order by id", lease.name)
    for path in _parts(db):
        table = int(path.split("_")[1])
        if table in [each for each, _ in owned] or not db.rows("select 1 from tables where id = ?", table):
            drop_part(db, path)
    staged = [table for table, is_staged in owned if is_staged]
    if not staged:
        return
    with db.transaction(lease):
        blobs = "select blob from staged_segments where table_id = any(?)"
        db.execute(f"delete from segment_blobs where id in ({blobs})", staged)
        db.execute("delete from staged_segments where table_id = any(?)", staged)
        db.execute("delete from staged_buckets where table_id = any(?)", staged)
        db.execute("update tables set state = 'dropped' where id = any(?)", staged)


_PARTS = r"""
select distinct substring(tablename from '^(stage_\d+_\d+_\w*)_(rows|lookups|buckets|segments|flips)$')
from pg_tables where schemaname = current_schema() and tablename ~ '^stage_[0-9]'
union select path from staged_parts
"""


def _parts(db: Cursor) -> list[str]:
    """Paths of all parts that exist, even if only partly."""
    return sorted(path for (path,) in db.rows(_PARTS) if path is not None)
