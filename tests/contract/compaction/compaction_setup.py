"""What tests of compaction write to, read as devices do, and compact."""

from __future__ import annotations

from collections.abc import Callable

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState
from headwater.storage.contract.reader import Chunk, StoreReader
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.compaction import CompactionStore
from tests.support import store_checker
from tests.support.fix_headwater import read_bucket
from tests.support.model_device import ModelBucket, contents, parse_ops
from tests.support.written_store import WrittenStore

A, B = 'todos.1["a"]', 'todos.1["b"]'
FREE = CompactionPolicy(budget=0)
LAVISH = CompactionPolicy(spare=0.0, budget=1 << 40, price=1e9, least=1)


class CompactionSetup:
    """A store with a hand that writes, an eye that reads as devices do, and the compaction of it."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.hand = WrittenStore(address)
        self.reader: StoreReader = open_store(address).open_reader()
        self.compaction: CompactionStore = open_store(address).open_compaction()

    def compact(self, policy: CompactionPolicy = FREE, *, stopping: Callable[[float], bool] = lambda _: False) -> None:
        """By command: up to now, and at once."""
        with CompactionPass(self.compaction, "here:1", stopping) as work:
            for bucket in self.states():
                work.bucket(bucket, self.compaction.checkpoint(), policy, finish=True)

    def key(self, bucket: str) -> int:
        """The key under which the store keeps a bucket."""
        return self.hand.key(bucket)

    def states(self) -> list[BucketState]:
        return list(self.compaction.buckets(OpId(0)))

    def state(self, name: str) -> BucketState:
        return next(bucket for bucket in self.states() if bucket.name == name)

    def total(self, bucket: str) -> tuple[OpId, int, int]:
        with self.reader.snapshot() as snapshot:
            assert snapshot is not None
            total = snapshot.totals([bucket])[bucket]
            return snapshot.checkpoint.op_id, total.checksum, total.count

    def device(self, bucket: str, model: ModelBucket | None = None) -> ModelBucket:
        """Brings a device to the newest checkpoint, with the checksum it was told."""
        fresh = model is None
        upto, checksum, count = self.total(bucket)
        ops = self.ops(bucket) if fresh else []
        model = read_bucket(self.reader, bucket, upto, model)
        assert model.checksum == checksum
        assert not fresh or len(ops) == count, "a new device gets as many ops as it is told"
        return model

    def ops(self, bucket: str) -> list[dict[str, object]]:
        """All that a new device is sent."""
        return [op for chunk in self.chunks(bucket) for op in parse_ops(chunk.ops)]

    def chunks(self, bucket: str) -> list[Chunk]:
        upto, after, chunks = self.total(bucket)[0], OpId(0), []
        while True:
            chunk = self.reader.chunk(bucket, after, upto)
            if chunk.size:
                chunks.append(chunk)
            after = chunk.next_after
            if not chunk.more:
                return chunks

    def assert_whole(self, *devices: dict[str, ModelBucket]) -> None:
        """Every device ends with the rows that there are, and nothing in the store contradicts itself."""
        expected = {("todos", row_id): {"text": text} for row_id, (_, text) in self.hand.rows.items()}
        for device in devices:
            for bucket in (A, B):
                device[bucket] = self.device(bucket, device.get(bucket))
            assert contents(device.values()) == expected
        assert store_checker.problems(self.address) == []

    def close(self) -> None:
        self.compaction.close()
        self.reader.close()
        self.hand.close()


def kinds(ops: list[dict[str, object]]) -> list[str]:
    return [str(op["op"]) for op in ops]
