"""What a task of a bulk job writes: tables of its own, which the store takes over on the server later.

The tables need no durability: a durable table records how many rows they hold, and tables of a failed attempt are never
used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.copying import copy_lines, escaped, row_line
from headwater.storage.postgres.tables import stored_id
from headwater.storage.shared.common import unseen
from headwater.storage.shared.segments import SegmentPacker
from headwater_rules.results import LookupEntry

_SENT_BYTES = 8 << 20  # of segments, before they go to the server

KINDS = ("rows", "lookups", "buckets", "segments")

_TABLES = """
drop table if exists {rows}, {lookups}, {buckets}, {segments};
delete from staged_parts where path = {path};
create unlogged table {rows} (page integer, row_id text collate "C", layout integer, line text, members text,
    subkey text, long_id text);
create unlogged table {lookups} (page integer, key text, row_id text collate "C", output text);
create unlogged table {buckets} (id bigint, name text, definition text);
create unlogged table {segments} (id bigint generated always as identity, page integer, bucket bigint, size bigint,
    checksum bigint, bodies bytea);
alter table {segments} alter column bodies set storage external
"""


def stage_tables(path: str) -> dict[str, sql.Identifier]:
    """The tables of a part, by kind."""
    return {kind: sql.Identifier(f"{path}_{kind}") for kind in KINDS}


class StageTables:
    """The result of one attempt, see `storage.contract.parts.PartWriter`. Batches commit one by one, so that no
    transaction is open while the source is read."""

    def __init__(self, address: PostgresAddress, table: int, number: int, attempt: str) -> None:
        self._address = address
        self._table = table
        self._attempt = attempt
        self._path = f"stage_{table:d}_{number:d}_{re.sub(r'[^a-z0-9]', '_', attempt.lower())}"
        self._tables = stage_tables(self._path)
        self._packer = SegmentPacker(self._keep)
        self._segments: list[tuple[int, int, int, int, bytes]] = []
        self._segment_bytes = 0
        self._named: set[int] = set()
        self._page = 0
        self._counts: list[tuple[int, int]] = []  # rows and ops of each page that has ended
        self._rows = 0
        self._ops = 0
        self._finished = False
        self._db = connect(address, "bulk work")
        try:
            with postgres_errors(address):
                self._db.execute(sql.SQL(_TABLES).format(path=sql.Literal(self._path), **self._tables))
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> StageTables:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            # The connection may be what failed; `discard_staged` then drops what is left
            with contextlib.suppress(psycopg.Error):
                drop_part(self._db, self._path)
        self._db.close()

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[str, Bucket],
    ) -> None:
        page = self._page
        with postgres_errors(self._address):
            if rows:
                self._copy("rows", [f"{page}\t{row_line(row)}" for row in rows])
            if lookups:
                self._copy("lookups", [_lookup_line(page, row_id, entry) for row_id, entry in lookups])
            new = unseen(buckets, self._named)
            if new:
                self._copy("buckets", [f"{key}\t{escaped(name)}\t{escaped(of)}" for key, name, of in new])
            self._packer.add(ops)
        self._rows += len(rows)
        self._ops += len(ops)

    def end_page(self) -> None:
        with postgres_errors(self._address):
            self._end_page()

    def _end_page(self) -> None:
        self._packer.seal_all()
        self._send_segments()
        done = [sum(column) for column in zip(*self._counts, strict=True)] or [0, 0]
        self._counts.append((self._rows - done[0], self._ops - done[1]))
        self._page += 1

    def finish(self) -> StagedPart:
        pages = self._page
        with postgres_errors(self._address):
            if not pages:
                self._end_page()
            else:
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["rows"]))
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["lookups"]))
                self._db.execute(sql.SQL("create index on {} (page)").format(self._tables["segments"]))
            self._db.execute(
                "insert into staged_parts (path, page, rows, ops)"
                " select %s, * from unnest(%s::int[], %s::bigint[], %s::bigint[])",
                [self._path, list(range(len(self._counts))), *map(list, zip(*self._counts, strict=True))],
            )
        self._finished = True
        return StagedPart(self._path, self._table, self._rows, self._ops, self._attempt, pages)

    def _copy(self, kind: str, lines: Sequence[str]) -> None:
        columns = {
            "rows": "(page, row_id, layout, line, members, subkey, long_id)",
            "lookups": "(page, key, row_id, output)",
            "buckets": "(id, name, definition)",
        }[kind]
        copy_lines(self._db, sql.SQL("copy {} {} from stdin").format(self._tables[kind], sql.SQL(columns)), lines)

    def _keep(self, bucket: int, size: int, checksum: int, blob: bytes) -> None:
        self._segments.append((self._page, bucket, size, checksum, blob))
        self._segment_bytes += len(blob)
        if self._segment_bytes > _SENT_BYTES:
            self._send_segments()

    def _send_segments(self) -> None:
        if not self._segments:
            return
        statement = sql.SQL("copy {} (page, bucket, size, checksum, bodies) from stdin (format binary)")
        with self._db.cursor() as cursor, cursor.copy(statement.format(self._tables["segments"])) as copy:
            copy.set_types(["int4", "int8", "int8", "int8", "bytea"])
            for segment in self._segments:
                copy.write_row(segment)
        self._segments, self._segment_bytes = [], 0


def _lookup_line(page: int, row_id: str, entry: LookupEntry) -> str:
    return f"{page}\t{escaped(entry.key)}\t{escaped(stored_id(row_id)[0])}\t{escaped(entry.output)}"


def drop_part(connection: psycopg.Connection, path: str) -> None:
    """Delete a part."""
    names = sql.SQL(", ").join(stage_tables(path).values())
    with connection.transaction():
        connection.execute(sql.SQL("drop table if exists {}").format(names))
        connection.execute("delete from staged_parts where path = %s", [path])
