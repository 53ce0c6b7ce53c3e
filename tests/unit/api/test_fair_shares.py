"""A user with many expensive streams delays nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from tests.support.fix_api import RULES, Endpoint
from tests.support.fix_headwater import wait_until
from tests.support.memory_store import MemorySnapshot, MemoryStore
from tests.support.model_client import ModelClient

GREEDY = 10


class SlowStore(MemoryStore):
    """Looks up the keys in `slow`, and reads the buckets in it, only once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[str] = set()
        self.go = threading.Event()

    @contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot | None]:
        with super().snapshot() as snapshot:
            yield cast("MemorySnapshot", _SlowSnapshot(self, snapshot))

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        self.wait_for(bucket)
        return super().chunk(bucket, after, upto)

    def wait_for(self, *names: str) -> None:
        if self.slow.intersection(names):
            assert self.go.wait(60)


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


@pytest.fixture
def slow_store() -> SlowStore:
    store = SlowStore()
    store.replace_config(RULES)
    store.put("unrelated", "1")
    store.commit()
    return store


@pytest.fixture
def endpoint(slow_store: SlowStore, start_endpoint: Callable[..., Endpoint]) -> Endpoint:
    return start_endpoint(slow_store)


def shown(endpoint: Endpoint, user: str) -> ModelClient:
    """A device that connects, gets everything and goes."""
    with endpoint.stream(user) as stream:
        return stream.completed()


def test_others_can_connect_meanwhile(endpoint: Endpoint, slow_store: SlowStore) -> None:
    slow_store.slow = {endpoint.membership("greedy")}
    with ThreadPoolExecutor(GREEDY) as pool:
        try:
            greedy = [pool.submit(shown, endpoint, "greedy") for _ in range(GREEDY)]
            wait_until(lambda: endpoint.open_streams() == GREEDY, "all requests to be there")
            shown(endpoint, "u1")
        finally:
            slow_store.go.set()
        assert [each.result().completed for each in greedy] == [1] * GREEDY


def test_others_can_download_meanwhile(slow_store: SlowStore, start_endpoint: Callable[..., Endpoint]) -> None:
    endpoint = start_endpoint(slow_store, max_data_fetch_concurrency=2)
    for user in ("greedy", "u1"):
        slow_store.put(endpoint.bucket("mine", user), user)
    slow_store.commit()
    slow_store.slow = {endpoint.bucket("mine", "greedy")}
    with ExitStack() as stack:
        stack.callback(slow_store.go.set)
        greedy = [stack.enter_context(endpoint.stream("greedy")) for _ in range(GREEDY)]
        for each in greedy:
            each.until(lambda client: "checkpoint" in client.kinds())
        assert ("todos", "u1") in shown(endpoint, "u1").rows
        slow_store.go.set()
        for each in greedy:
            assert ("todos", "greedy") in each.completed().rows


def test_changes_reach_others_meanwhile(endpoint: Endpoint, slow_store: SlowStore) -> None:
    slow_store.put(endpoint.bucket("shared", "l1"), "of l1")
    slow_store.commit()
    with ExitStack() as stack:
        stack.callback(slow_store.go.set)
        greedy = [stack.enter_context(endpoint.stream("greedy")) for _ in range(GREEDY)]
        other = stack.enter_context(endpoint.stream("u1"))
        for each in (*greedy, other):
            each.completed()
        slow_store.slow = {endpoint.membership("greedy")}
        slow_store.set_lookup(endpoint.membership("greedy"), ['["l1"]'])
        slow_store.put(endpoint.bucket("mine", "u1"), "note")
        slow_store.commit()
        assert ("todos", "note") in other.completed(2).rows
        slow_store.go.set()
        for each in greedy:
            assert ("todos", "of l1") in each.completed(2).rows
