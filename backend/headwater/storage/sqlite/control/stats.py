"""Statistics of the embedded store's buckets, read beside its writer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw
import zstandard

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.stats import DefinitionStats
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.format import FORMAT, found_format

# A new device starts at the last CLEAR; a segment that contains it counts as a whole. Ops of segments that are not
# sealed have no ids yet, so the length of the id field is added.
SIZES = """
with hot as (
    select o.bucket, sum(octet_length(o.line) + 1) as size from ops o cross join buckets b on b.id = o.bucket
    where o.id >= b.clear_op group by o.bucket
), cold as (
    select s.bucket, sum(content_size(x.bodies) + case s.sealed when 1 then 0 else
        (s.last_op - s.first_op + 1) * (length(s.last_op) + length('{"op_id":"",')) end) as size
    from segments s join buckets b on b.id = s.bucket join segment_blobs x on x.id = s.blob
    where s.last_op >= b.clear_op group by s.bucket
)
"""
"""Bytes that a new device downloads, by bucket: two tables to join with `buckets`."""

_STATS = f"""{SIZES}
select b.definition, count(*), sum(b.count), sum(coalesce(hot.size, 0) + coalesce(cold.size, 0)),
    max(b.count), max(coalesce(hot.size, 0) + coalesce(cold.size, 0))
from buckets b left join hot on hot.bucket = b.id left join cold on cold.bucket = b.id
group by b.definition order by b.definition
"""


def exists(address: SqliteAddress) -> bool:
    """See `Backend.exists`."""
    return (Path(address.directory) / "store.db").is_file()


def older_format(address: SqliteAddress) -> int | None:
    """See `Backend.older_format`."""
    path = Path(address.directory) / "store.db"
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        found = found_format(connection, path)
        return None if found == FORMAT else found


def definition_stats(address: SqliteAddress) -> list[DefinitionStats]:
    """See `Backend.definition_stats`."""
    path = Path(address.directory) / "store.db"
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        connection.create_scalar_function("content_size", content_size, 1, deterministic=True)
        return [DefinitionStats(str(name), *map(_number, rest)) for name, *rest in connection.execute(_STATS)]


def _number(value: apsw.SQLiteValue) -> int:
    return as_int(value)


def content_size(*blobs: apsw.SQLiteValue) -> int:
    """Bytes of a zstd frame's content, from its header unless the frame was written as a stream."""
    (blob,) = blobs
    if not isinstance(blob, bytes):
        return 0
    size = zstandard.frame_content_size(blob)
    return size if size >= 0 else len(zstandard.ZstdDecompressor().decompressobj().decompress(blob))
