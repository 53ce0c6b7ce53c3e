"""A store with one published table, and hands that write to it and read from it as replicator and devices would."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import Bucket, Buckets, DraftOp, RowKeys, decode_memberships, encode_memberships, row_ops
from headwater.storage.address import StoreAddress
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedPart
from headwater.storage.contract.reader import Checkpoint, StoreReader
from headwater.storage.contract.store import Lease, ReplicationProgress, SourceState
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.parts import PartWriter
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.results import LookupEntry, Put
from tests.support.fix_headwater import read_bucket
from tests.support.model_device import ModelBucket

SOURCE = "default"
YAML = "streams: {}"
SIDES = {"todos.1": "digest"}
RELATION = Relation(1, "public", "todos", ReplicaIdentity.DEFAULT, (Column("id", 25, -1, True),))

A, B = 'todos.1["a"]', 'todos.1["b"]'

Rows = dict[str, tuple[str, str]]
"""Id to bucket and text."""


@dataclass
class SourceWriter:
    """One source's writer."""

    address: StoreAddress
    store: StoreWriter
    lease: Lease
    source: str = SOURCE
    table: int = 0
    lsn: int = 100
    numbers: list[int] = field(default_factory=list)

    def bootstrap(self, rows: Rows, *, parts: int = 1, yaml: str = YAML) -> Checkpoint:
        """Publish `rows` as a bulk job would, in so many parts."""
        self.store.discard_staged(self.lease)
        (staged,) = self.store.stage_tables(self.lease, self.source, [(RELATION, "print")])
        self.store.stage(self.lease, [self.part(staged.id, rows, i, parts) for i in range(parts)])
        version = self.store.deploy(yaml, Origin.FILE)
        record = BulkRecord("snapshot", self.source, "app", parts, len(rows), len(rows), 0.0, 1.0)
        self.table = staged.id
        return self.store.publish(self.lease, self.state(), [staged], version.id, SIDES, record)

    def state(self) -> SourceState:
        return SourceState(self.source, Lsn(self.lsn), "slot", "1", 1)

    def part(self, table: int, rows: Rows, number: int, parts: int) -> StagedPart:
        """What task `number` of a snapshot leaves."""
        mine = {row_id: rows[row_id] for n, row_id in enumerate(rows) if n % parts == number}
        with open_store(self.address).open_part(table, number, str(next_number(self.numbers))) as part:
            for batch in batches(list(mine.items()), 700):
                write_batch(part, table, batch, self.keys)
            return part.finish()

    def additions(self, rows: Rows, *, rows_a_page: int = 2, lookups: bool = False) -> StagedPart:
        """What a task leaves that found what rows which are there give for buckets that were not complete."""
        with open_store(self.address).open_part(self.table, 0, str(next_number(self.numbers))) as part:
            for batch in batches(list(rows.items()), rows_a_page):
                write_batch(part, self.table, batch, self.keys, added=True, lookups=lookups)
                part.end_page()
            return part.finish()

    @property
    def keys(self) -> StoreKeys:
        return self.store.keys()

    def key(self, bucket: str) -> int:
        """The key under which the store keeps a bucket."""
        return self.keys.bucket(bucket)

    def write(self, changes: dict[str, tuple[str, str] | None], *, lsn: int | None = None) -> Checkpoint:
        """One flush: rows put into a bucket with a text, or deleted."""
        flush = self.store.begin(self.lease)
        current = flush.current(self.table, list(changes))
        gathered: list[DraftOp] = []
        buckets: Buckets = {}
        keys = self.keys
        for number, (row_id, target) in enumerate(changes.items()):
            before = current.get(row_id)
            previous = decode_memberships(before.members, row_id) if before is not None else []
            puts = [] if target is None else [put(*target[:1], row_id, target[1])]
            ops, members = row_ops(previous, puts, RowKeys(self.table, row_id, keys))
            gathered += ops
            buckets |= {p.bucket: named(keys, p.bucket) for p in puts}
            if number % 3 == 0:  # so that a flush has appends of one row and of several
                flush.append(gathered, buckets)
                gathered = []
            if target is None:
                flush.delete_rows(self.table, [row_id])
            else:
                line = f"{row_id}\t{target[1]}"
                flush.put_rows(self.table, [CurrentRow(row_id, 0, line, encode_memberships(members, row_id), None)])
        flush.append(gathered, buckets)
        self.lsn = lsn or self.lsn + 10
        return flush.commit(self.source, ReplicationProgress(Lsn(self.lsn), 5))

    @contextmanager
    def flush(self) -> Iterator[Flush]:
        """A flush that is committed at the end, with the position as it was; rolled back after an error."""
        flush = self.store.begin(self.lease)
        try:
            yield flush
        except BaseException:
            flush.rollback()
            raise
        flush.commit(self.source, ReplicationProgress(Lsn(self.lsn)))

    @contextmanager
    def rolled_back(self) -> Iterator[Flush]:
        """A flush that is given up at the end."""
        flush = self.store.begin(self.lease)
        try:
            yield flush
        finally:
            flush.rollback()

    def truncate(self) -> Checkpoint:
        flush = self.store.begin(self.lease)
        self.table = flush.truncate(self.table, ["todos.1"])
        self.lsn += 10
        return flush.commit(self.source, ReplicationProgress(Lsn(self.lsn)))

    def rows(self) -> dict[str, CurrentRow]:
        """All current rows, by id."""
        with self.rolled_back() as flush:
            ids = [row_id for row_id, _, _ in flush.table_members(self.table)]
            return flush.current(self.table, ids)


def batches(rows: list[tuple[str, tuple[str, str]]], size: int) -> list[list[tuple[str, tuple[str, str]]]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def write_batch(
    part: PartWriter,
    table: int,
    rows: list[tuple[str, tuple[str, str]]],
    keys: StoreKeys,
    *,
    added: bool = False,
    lookups: bool = False,
) -> None:
    """Rows as a task writes them: whole, or what comes on top of rows that are there."""
    current: list[CurrentRow] = []
    ops: list[DraftOp] = []
    for row_id, (bucket, text) in rows:
        drafts, members = row_ops((), [put(bucket, row_id, text)], RowKeys(table, row_id, keys))
        ops += drafts
        line = "" if added else f"{row_id}\t{text}"
        current.append(CurrentRow(row_id, 0, line, encode_memberships(members, row_id), None))
    entries = [(row_id, LookupEntry(f'owners["{text}"]', "[1]")) for row_id, (_, text) in rows if lookups]
    part.write(current, entries, ops, {bucket: named(keys, bucket) for _, (bucket, _) in rows})


def noise(size: int) -> str:
    """Text that no compression makes shorter."""
    return random.Random(size).randbytes(size // 2).hex()


def next_number(numbers: list[int]) -> int:
    """1, 2, 3 …"""
    numbers.append(len(numbers) + 1)
    return numbers[-1]


def put(bucket: str, row_id: str, text: str) -> Put:
    return Put(0, bucket, "todos", row_id, f'{{"text":"{text}"}}')


def named(keys: StoreKeys, bucket: str) -> Bucket:
    return Bucket(keys.bucket(bucket), bucket, bucket.partition("[")[0])


def totals(reader: StoreReader, bucket: str) -> tuple[int, int, int]:
    """Checkpoint, checksum and count that the store tells of a bucket."""
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        total = snapshot.totals([bucket])[bucket]
        return snapshot.checkpoint.op_id, total.checksum, total.count


def lookups(reader: StoreReader, keys: Sequence[str]) -> dict[str, list[str]]:
    """What stands under the keys at the newest checkpoint."""
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        return snapshot.lookups(keys)


def assert_in_step(reader: StoreReader, bucket: str, model: ModelBucket | None = None) -> ModelBucket:
    """Bring a device's bucket to the newest checkpoint, where it must have the checksum that it is told."""
    upto, checksum, count = totals(reader, bucket)
    fresh = model is None
    model = read_bucket(reader, bucket, upto, model)
    assert model.checksum == checksum
    if fresh:
        assert count >= len(model.rows)
    return model
