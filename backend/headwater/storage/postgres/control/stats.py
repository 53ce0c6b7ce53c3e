"""Statistics of the buckets of a store in Postgres, read beside its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import groupby

import psycopg
import zstandard

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.stats import DefinitionStats
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.format import FORMAT, found_format

_FETCH = 5_000
_HEADER = 18  # maximum length in bytes of the zstd frame header, which holds the content's size

# A row for each segment, or one for a bucket without any. A new device starts at the last CLEAR; a segment with it
# counts as a whole. Ops of segments that are not sealed have no ids yet, so the length of the id field is added.
_BUCKETS = f"""
declare buckets no scroll cursor for
with hot as (
    select o.bucket, sum(octet_length(o.line) + 1)::int8 as size from ops o join buckets b on b.id = o.bucket
    where o.id >= b.clear_op group by o.bucket
)
select b.definition, b.id, b.count, coalesce(hot.size, 0)::int8, s.blob, substring(x.bodies from 1 for {_HEADER}),
    (case when s.sealed then 0 else
        (s.last_op - s.first_op + 1) * (length(s.last_op::text) + length('{{"op_id":"",')) end)::int8
from buckets b left join hot on hot.bucket = b.id
    left join segments s on s.bucket = b.id and s.last_op >= b.clear_op
    left join segment_blobs x on x.id = s.blob
order by b.definition collate "C", b.id
"""

_Row = tuple[str, int, int, int, int | None, bytes | None, int]
"""Definition, bucket, its ops, its bytes outside of segments; a segment's blob, the header of the blob, and the bytes
of its id fields."""


def exists(address: PostgresAddress) -> bool:
    """See `Backend.exists`."""
    with contextlib.closing(connect(address, "stats")) as connection, postgres_errors(address):
        row = connection.execute("select to_regclass(quote_ident(current_schema()) || '.meta') is not null").fetchone()
        return row is not None and bool(row[0])


def older_format(address: PostgresAddress) -> int | None:
    """See `Backend.older_format`."""
    with contextlib.closing(connect(address, "stats")) as connection, postgres_errors(address):
        found = found_format(connection, address)
        return None if found == FORMAT else found


def definition_stats(address: PostgresAddress) -> list[DefinitionStats]:
    """See `Backend.definition_stats`."""
    with contextlib.closing(connect(address, "stats")) as connection, postgres_errors(address):
        connection.execute("begin isolation level repeatable read read only; set local enable_seqscan = on")
        buckets = groupby(bucket_sizes(connection), key=lambda bucket: bucket[0])
        return [_summed(definition, [(ops, size) for _, _, ops, size in held]) for definition, held in buckets]


def _summed(definition: str, buckets: list[tuple[int, int]]) -> DefinitionStats:
    ops, sizes = zip(*buckets, strict=True)
    return DefinitionStats(definition, len(buckets), sum(ops), sum(sizes), max(ops), max(sizes))


def bucket_sizes(connection: psycopg.Connection) -> Iterator[tuple[str, int, int, int]]:
    """Definition, key, ops and bytes of each bucket, ordered by definition. Call it within a transaction."""
    for (definition, key, ops, hot), segments in groupby(_rows(connection), key=lambda row: row[:4]):
        cold = sum(_content_size(connection, blob, head) + ids for *_, blob, head, ids in segments if blob and head)
        yield definition, key, ops, hot + cold


def _rows(connection: psycopg.Connection) -> Iterator[_Row]:
    connection.execute(_BUCKETS)
    while rows := connection.execute(f"fetch {_FETCH} from buckets", binary=True).fetchall():
        yield from rows


def _content_size(connection: psycopg.Connection, blob: int, header: bytes) -> int:
    """Bytes of a zstd frame's content, from its header unless the frame was written as a stream."""
    size = zstandard.frame_content_size(header)
    if size >= 0:
        return size
    bodies = connection.execute("select bodies from segment_blobs where id = %s", [blob]).fetchall()[0][0]
    return len(zstandard.ZstdDecompressor().decompressobj().decompress(bodies))
