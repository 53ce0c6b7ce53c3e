"""A bulk job without Spark, as a process that can die: `python -m tests.integration.small_bulk DIRECTORY TEXT`.

Two tables of 40 rows each, in two parts each, are staged and published; every row carries TEXT.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import Bucket, RowKeys, encode_memberships, row_ops
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedPart, StagedTable
from headwater.storage.contract.store import SourceState
from headwater.storage.contract.versions import Origin
from headwater.storage.sql.leases import process_owner
from headwater.storage.sqlite.bulk import open_part
from headwater.storage.sqlite.writer import SqliteWriter
from headwater_rules.results import LookupEntry, Put

SOURCE = "default"
BUCKETS = ('all.1["a"]', 'all.1["b"]')
KINDS = ("lists", "todos")
ROWS, PARTS = 40, 2


def expected(text: str) -> dict[tuple[str, str], dict[str, object]]:
    """What a device of both buckets shows after a job with this text."""
    return {(kind, str(i)): {"text": text} for kind in KINDS for i in range(ROWS)}


def run(directory: Path, text: str) -> None:
    """Replace all that the store has of the source."""
    store = SqliteWriter(directory)
    lease = store.acquire(SOURCE, process_owner(), 30.0)
    store.discard_staged(lease)
    columns = (Column("id", 25, -1, True),)
    relations = [Relation(n, "public", kind, ReplicaIdentity.DEFAULT, columns) for n, kind in enumerate(KINDS, 1)]
    tables = store.stage_tables(lease, SOURCE, [(relation, "print") for relation in relations])
    folder = Path(store.staging_directory(lease))
    keys = store.keys()
    parts = [_part(keys, folder, table, part, text) for table in tables for part in range(PARTS)]
    store.stage(lease, parts)
    known = store.source_state(SOURCE)
    state = SourceState(SOURCE, Lsn(100 if known is None else known.lsn + 100), "slot", "1", 1)
    record = BulkRecord("snapshot", SOURCE, "app", len(parts), ROWS * len(KINDS), ROWS * len(KINDS), 0.0, 1.0)
    version = store.deploy("streams: {}", Origin.FILE)
    store.publish(lease, state, tables, version.id, {"all.1": "1", "l": "2"}, record)
    store.release(lease)
    store.close()


def _part(keys: StoreKeys, folder: Path, table: StagedTable, part: int, text: str) -> StagedPart:
    with open_part(folder / f"part-{table.id}-{part}.db", table.id, "0") as file:
        for row_id in map(str, range(part, ROWS, PARTS)):
            bucket = BUCKETS[int(row_id) % 3 == 0]
            puts = [Put(0, bucket, table.relation.name, row_id, f'{{"text":"{text}"}}')]
            ops, members = row_ops((), puts, RowKeys(table.id, row_id, keys))
            row = CurrentRow(row_id, 0, f"{row_id}\t{text}", encode_memberships(members, row_id), None)
            lookups = [(row_id, LookupEntry(f'l["{table.relation.name}"]', f'["{text} {row_id}"]'))]
            file.write([row], lookups, ops, {bucket: Bucket(keys.bucket(bucket), bucket, "all.1")})
        return file.finish()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
