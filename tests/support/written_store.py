"""A store that a test fills through the contract alone, whichever back end it is."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import (
    Bucket,
    BucketMembership,
    Buckets,
    DraftOp,
    RowKeys,
    decode_memberships,
    encode_memberships,
    row_ops,
)
from headwater.storage.address import StoreAddress
from headwater.storage.contract.parts import BulkRecord, CurrentRow
from headwater.storage.contract.reader import Checkpoint, StoreReader
from headwater.storage.contract.store import ReplicationProgress, SourceState
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater_rules.results import LookupEntry, Put
from tests.support.model_device import ModelBucket, chunks_of, parse_ops

SOURCE = "default"
COLUMNS = Column("id", 25, -1, True), Column("text", 25, -1, False)
RELATION = Relation(1, "public", "todos", ReplicaIdentity.DEFAULT, COLUMNS)
YAML = "streams: {}"
A, B, C = 'todos["a"]', 'todos["b"]', 'notes["c"]'

Rows = Mapping[str, tuple[str, str]]
"""By row id: the bucket it stands in, and its text. Buckets are named `<definition>["<value>"]`."""

_owners = itertools.count(1)


class WrittenStore:
    """One source table `todos`, whose rows each stand in one bucket and have one lookup. `rows` is the truth."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.store = open_store(address).open_writer()
        try:
            self.lease = self.store.acquire(SOURCE, f"written-store:{next(_owners)}", 600.0)
        except BaseException:
            self.store.close()
            raise
        self.keys = self.store.keys()
        self.rows: dict[str, tuple[str, str]] = {}
        self.lsn = 100
        found = self.store.tables(SOURCE)
        self.table = found[0].id if found else 0
        self._reader: StoreReader | None = None
        self._closed = False

    def publish(self, rows: Rows) -> Checkpoint:
        """Replace everything, as a snapshot does."""
        self.store.discard_staged(self.lease)
        version = self.store.deploy(YAML, Origin.FILE)
        (staged,) = self.store.stage_tables(self.lease, SOURCE, [(RELATION, "print")])
        standing: list[CurrentRow] = []
        lookups: list[tuple[str, LookupEntry]] = []
        ops: list[DraftOp] = []
        for row_id, (bucket, text) in rows.items():
            added, members = row_ops((), [_put(bucket, row_id, text)], RowKeys(staged.id, row_id, self.keys))
            standing.append(_current(row_id, text, members))
            lookups.append((row_id, _lookup(bucket, row_id)))
            ops += added
        buckets = {bucket: _named(self.keys, bucket) for bucket, _ in rows.values()}
        with open_store(self.address).open_part(staged.id, 1, "0") as part:
            part.write(standing, lookups, ops, buckets)
            parts = [part.finish()]
        self.store.stage(self.lease, parts)
        state = SourceState(SOURCE, Lsn(self.lsn), "slot", "1", 1)
        record = BulkRecord("snapshot", SOURCE, "app", 1, len(rows), len(rows), 1.0, 2.0)
        sides = {bucket.definition: "digest" for bucket in buckets.values()}
        self.table, self.rows = staged.id, dict(rows)
        return self.store.publish(self.lease, state, [staged], version.id, sides, record)

    def write(self, changes: Mapping[str, tuple[str, str] | None], *, committed_us: int = 5_000_000) -> Checkpoint:
        """One flush: rows put into a bucket with a text, or deleted."""
        flush = self.store.begin(self.lease)
        before = flush.current(self.table, list(changes))
        ops: list[DraftOp] = []
        buckets: Buckets = {}
        standing: list[CurrentRow] = []
        gone: list[str] = []
        for row_id, target in changes.items():
            previous = decode_memberships(before[row_id].members, row_id) if row_id in before else []
            puts = [] if target is None else [_put(*target[:1], row_id, target[1])]
            added, members = row_ops(previous, puts, RowKeys(self.table, row_id, self.keys))
            ops += added
            buckets.update({put.bucket: _named(self.keys, put.bucket) for put in puts})
            if target is None:
                self.rows.pop(row_id, None)
                gone.append(row_id)
                flush.replace_lookups(self.table, row_id, [])
            else:
                self.rows[row_id] = target
                standing.append(_current(row_id, target[1], members))
                flush.replace_lookups(self.table, row_id, [_lookup(target[0], row_id)])
        flush.append(ops, buckets)
        flush.delete_rows(self.table, gone)
        flush.put_rows(self.table, standing)
        self.lsn += 10
        return flush.commit(SOURCE, ReplicationProgress(Lsn(self.lsn), committed_us))

    def truncate(self) -> Checkpoint:
        flush = self.store.begin(self.lease)
        self.table = flush.truncate(
            self.table, {_named(self.keys, bucket).definition for bucket, _ in self.rows.values()}
        )
        self.rows.clear()
        self.lsn += 10
        return flush.commit(SOURCE, ReplicationProgress(Lsn(self.lsn), 6_000_000))

    def catch_up(self, device: dict[str, ModelBucket]) -> int:
        """As `catch_up`, by a reader that stays open."""
        if self._reader is None:
            self._reader = open_store(self.address).open_reader()
        return _catch_up(self._reader, device)

    def key(self, bucket: str) -> int:
        """The key under which the store keeps a bucket."""
        return self.keys.bucket(bucket)

    def standing(self) -> Counter[tuple[str, str, str]]:
        """Bucket, id and text of every row there should be."""
        return Counter((bucket, row_id, text) for row_id, (bucket, text) in self.rows.items())

    def close(self) -> None:
        """Leave the store to others. May be called again."""
        if not self._closed:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            self.store.release(self.lease)
            self.store.close()


def _put(bucket: str, row_id: str, text: str) -> Put:
    return Put(0, bucket, "todos", row_id, json.dumps({"text": text}))


def _named(keys: StoreKeys, bucket: str) -> Bucket:
    return Bucket(keys.bucket(bucket), bucket, bucket.partition("[")[0])


def _current(row_id: str, text: str, members: Sequence[BucketMembership]) -> CurrentRow:
    return CurrentRow(row_id, 0, f"{row_id}\t{text}", encode_memberships(members, row_id), None)


def _lookup(bucket: str, row_id: str) -> LookupEntry:
    return LookupEntry(f"l[{json.dumps(bucket)}]", json.dumps([row_id]))


def compact(address: StoreAddress, *buckets: str) -> None:
    """Shorten the history of buckets, as far as that costs devices nothing."""
    with (
        closing(open_store(address).open_compaction()) as store,
        CompactionPass(store, "test", lambda _: False) as work,
    ):
        states = {state.name: state for state in store.buckets(OpId(0))}
        for name in buckets:
            state = states[name]
            assert work.bucket(state, store.checkpoint(), CompactionPolicy(budget=0)) is not None


def catch_up(address: StoreAddress, device: dict[str, ModelBucket]) -> int:
    """Bring a device's buckets to the newest checkpoint, checksums verified. Returns how many ops it downloads."""
    with closing(open_store(address).open_reader()) as reader:
        return _catch_up(reader, device)


def _catch_up(reader: StoreReader, device: dict[str, ModelBucket]) -> int:
    downloaded = 0
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        totals, upto = snapshot.totals(list(device)), snapshot.checkpoint.op_id
    for name, model in device.items():
        for chunk in chunks_of(reader, name, model.position, upto):
            for op in parse_ops(chunk.ops):
                model.apply(op)
            downloaded += chunk.size
        assert model.checksum == totals[name].checksum, name
    return downloaded


def shown(device: dict[str, ModelBucket]) -> Counter[tuple[str, str, str]]:
    """Bucket, id and text of what a device holds."""
    return Counter(
        (name, row_id, json.loads(data)["text"])
        for name, model in device.items()
        for (_, row_id, _), (_, data, _) in model.rows.items()
    )
