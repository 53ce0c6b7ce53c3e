"""The store by itself, on both back ends: flushes, reading a large bucket, compaction, and what an op takes on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing

import orjson
import psycopg

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import Bucket, RowKeys, encode_memberships, row_ops
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import BulkRecord, CurrentRow
from headwater.storage.contract.store import Lease, ReplicationProgress, SourceState
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.results import Put
from tests.bench import report
from tests.bench.service import Meter, bench_service
from tests.support.model_device import chunks_of
from tests.support.store_file import store_file

BUCKET = 'items.1["u0"]'
RELATION = Relation(1, "public", "items", ReplicaIdentity.DEFAULT, (Column("id", 25, -1, True),))
ROWS_A_FLUSH = 10_000
VERSIONS = 4
"""How often each row is written: history before compaction holds that many ops for each live row."""


def run(ops: int) -> None:
    with bench_service(fsync="off") as service:
        with psycopg.connect(service.postgres.dsn(), autocommit=True) as admin:
            admin.execute("create database storage")
        _bench("embedded", SqliteAddress(str(service.directory / "bench-store")), ops)
        _bench("Postgres", PostgresAddress(service.postgres.dsn("storage")), ops)


def _bench(name: str, address: StoreAddress, ops: int) -> None:
    report.heading(f"store, {name}: {ops:,} ops, {VERSIONS} for each row")
    with closing(open_store(address).open_writer()) as store:
        lease = store.acquire("default", f"bench:{os.getpid()}", 600.0)
        table = _empty_table(store, lease)
        rows = ops // VERSIONS
        with Meter(os.getpid()).measure() as usage:
            for version in range(VERSIONS):
                _write(store, lease, table, rows, version)
        report.line("flushes of 10,000 rows", ops / usage.seconds, "ops/s")
        report.usage(usage, ops / 1e6)
        raw = sum(len(_line(number, 0)) for number in range(0, rows, 100)) * 100 / rows
        report.line("bytes on disk a live row, with its history", size_of(address) / rows, "B", "row as text", raw)
        _read("hot history", address, ops)
        _compact(address, ops)
        _read("compacted history", address, rows)
        report.line("bytes on disk a live row, compacted", size_of(address) / rows, "B", "row as text", raw)


def _empty_table(store: StoreWriter, lease: Lease) -> int:
    (staged,) = store.stage_tables(lease, "default", [(RELATION, "shape")])
    version = store.deploy("streams: {}", Origin.FILE)
    record = BulkRecord("snapshot", "default", "", 0, 0, 0, 0.0, 0.0)
    store.publish(lease, SourceState("default", Lsn(1), "slot", "1", 1), [staged], version.id, {}, record)
    return staged.id


def _line(number: int, version: int) -> str:
    return f"row-{number:012d}\tu0\ttitle {number * 7919 % 1_000_003:032d} with some more words\t{version}"


def _write(store: StoreWriter, lease: Lease, table: int, rows: int, version: int) -> None:
    keys = store.keys()
    buckets = {BUCKET: Bucket(keys.bucket(BUCKET), BUCKET, "items.1")}
    for numbers in _batches(rows):
        flush = store.begin(lease)
        put, drafts = [], []
        for number in numbers:
            row_id, line = f"row-{number:012d}", _line(number, version)
            data = orjson.dumps({"id": row_id, "title": line, "version": version}).decode()
            ops, members = row_ops((), [Put(0, BUCKET, "items", row_id, data)], RowKeys(table, row_id, keys))
            put.append(CurrentRow(row_id, 0, line, encode_memberships(members, row_id), None))
            drafts += ops
        flush.put_rows(table, put)
        flush.append(drafts, buckets)
        flush.commit("default", ReplicationProgress(Lsn(2 + version * rows + numbers[-1])))


def _batches(rows: int) -> Iterator[Sequence[int]]:
    return (range(first, min(first + ROWS_A_FLUSH, rows)) for first in range(0, rows, ROWS_A_FLUSH))


def _read(what: str, address: StoreAddress, ops: int) -> None:
    with closing(open_store(address).open_reader()) as reader:
        found = reader.newest()
        assert found is not None
        size, count = 0, 0
        with Meter(os.getpid()).measure() as usage:
            for chunk in chunks_of(reader, BUCKET, 0, found.checkpoint.op_id):
                size, count = size + len(chunk.ops), count + chunk.size
    report.line(f"read of {what}", count / usage.seconds, "ops/s")
    report.line(f"read of {what}", size / usage.seconds / 1e6, "MB/s")
    report.line("  CPU seconds per million", usage.cpu / max(count, 1) * 1e6, "CPU-s")
    assert count >= ops, "ops are missing"


def _compact(address: StoreAddress, ops: int) -> None:
    with closing(open_store(address).open_compaction()) as compaction:
        with Meter(os.getpid()).measure() as usage, CompactionPass(compaction, "bench:1", lambda _: False) as work:
            (state,) = [each for each in compaction.buckets(OpId(0)) if each.name == BUCKET]
            done = work.bucket(state, compaction.checkpoint(), CompactionPolicy(), finish=True)
            assert done is not None
        report.line("compaction", ops / usage.seconds, "ops/s")
        report.usage(usage, ops / 1e6)
        report.line("ops a live row afterwards", done.after / max(done.live, 1), "")


def size_of(address: StoreAddress, *, pack: bool = True) -> int:
    """The bytes that a store takes on disk; embedded, without the room that is free in it, and in Postgres with `pack`,
    which keeps others from the tables meanwhile."""
    match address:
        case SqliteAddress(directory):
            with store_file(directory) as db:
                pages, free, size = (
                    int(str(db.execute(f"pragma {name}").fetchall()[0][0]))
                    for name in ("page_count", "freelist_count", "page_size")
                )
            return (pages - free) * size
        case PostgresAddress(conninfo, schema):
            with psycopg.connect(conninfo, autocommit=True) as conn:
                conn.execute(f"set search_path to {schema}".encode())
                if pack:
                    conn.execute("vacuum full")
                sql = (
                    "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c"
                    " join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relkind = 'r'"
                )
                row = conn.execute(sql, [schema]).fetchone()
                return int(row[0]) if row else 0
