"""A store that is slow where a test wants it to be."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from tests.support.memory_store import MemorySnapshot, MemoryStore


class SlowStore(MemoryStore):
    """Looks up the keys in `slow`, and reads the buckets in it, only once `go` is set. `asked` are those it was asked
    for."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[str] = set()
        self.go = threading.Event()
        self.asked: list[str] = []

    @contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot | None]:
        with super().snapshot() as snapshot:
            yield cast("MemorySnapshot", _SlowSnapshot(self, snapshot))

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        self.wait_for(bucket)
        return super().chunk(bucket, after, upto)

    def wait_for(self, *names: str) -> None:
        if found := self.slow.intersection(names):
            self.asked += found
            assert self.go.wait(200)  # longer than any client waits


@dataclass
class _SlowSnapshot:
    store: SlowStore
    snapshot: MemorySnapshot | None

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        self.store.wait_for(*keys)
        assert self.snapshot is not None
        return self.snapshot.lookups(keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.snapshot, name)
