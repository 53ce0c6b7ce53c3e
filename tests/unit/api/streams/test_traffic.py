"""What goes to devices is counted: operations, bytes before and after compression, ends, and how old changes were."""

from __future__ import annotations

import json
import time

import pytest

from headwater.api.streams.traffic import DELAYS
from tests.support.fix_api import RULES, Endpoint
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

EPOCH_2000 = 946_684_800


def now_us() -> int:
    """The time as Postgres has it."""
    return int((time.time() - EPOCH_2000) * 1e6)


def observed(endpoint: Endpoint) -> int:
    """How many changes were noted to have arrived."""
    return sum(endpoint.traffic.delays.counts)


@pytest.fixture
def filled(endpoint: Endpoint, memory_store: MemoryStore) -> Endpoint:
    for number in range(50):
        memory_store.put(endpoint.bucket("mine", "u1"), f"t{number}", json.dumps({"text": "x" * 500}))
    memory_store.commit()
    return endpoint


def test_operations_and_bytes(filled: Endpoint) -> None:
    with filled.stream() as stream:
        client = stream.completed()
        wait_until(lambda: filled.traffic.operations == 50, "the count of operations")
        plain = sum(len(json.dumps(line, separators=(",", ":"))) + 1 for line in client.lines)
        wait_until(lambda: filled.traffic.plain_bytes == plain, "the count of bytes")
    assert filled.traffic.sent_bytes == plain, "nothing was compressed"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bytes(filled: Endpoint, encoding: str) -> None:
    with filled.stream(encoding=encoding) as stream:
        stream.completed()
    assert filled.traffic.plain_bytes > 25_000
    assert 0 < filled.traffic.sent_bytes < filled.traffic.plain_bytes / 5


def test_delay_is_observed_per_device(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = endpoint.bucket("mine", "u1")
    with endpoint.stream() as one, endpoint.stream() as two, endpoint.stream("u2") as other:
        for stream in (one, two, other):
            stream.completed()
        assert observed(endpoint) == 0, "what is there at the beginning is no change"
        memory_store.put(mine, "t1")
        memory_store.commit(committed_us=now_us() - 3_000_000)
        for stream in (one, two):
            stream.completed(2)
        wait_until(lambda: observed(endpoint) == 2, "both to be noted")
        assert endpoint.traffic.delays.counts[DELAYS.index(5.0)] == 2, "between two and five seconds"
        memory_store.put(mine, "t2")
        memory_store.commit()  # as bulk work does
        for stream in (one, two):
            stream.completed(3)
        memory_store.put(endpoint.bucket("mine", "u2"), "t3")
        memory_store.commit(committed_us=now_us() + 5_000_000)  # the source's clock is ahead
        other.completed(2)
        wait_until(lambda: observed(endpoint) == 3, "the third device to be noted")
    assert endpoint.traffic.delays.counts[0] == 1
    assert 6 <= endpoint.traffic.delays.seconds < 10


def test_delay_ignores_changes_of_others(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream() as stream:
        stream.completed()
        memory_store.reads.clear()
        memory_store.set_lookup(endpoint.membership("u1"), [])  # as before
        memory_store.commit(committed_us=now_us() - 60_000_000)
        wait_until(lambda: "snapshot" in memory_store.reads, "the device to be looked after")
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.commit(committed_us=now_us())
        stream.completed(2)
        wait_until(lambda: observed(endpoint) == 1, "the change to be noted")
    assert endpoint.traffic.delays.seconds < 30


def test_delay_of_a_change_of_many_batches(memory_store: MemoryStore, endpoint: Endpoint) -> None:
    mine = endpoint.bucket("mine", "u1")
    with endpoint.stream() as stream:
        stream.completed()
        for number in range(5000):
            memory_store.put(mine, str(number), json.dumps({"text": "x" * 200}))
        memory_store.commit(committed_us=now_us())
        stream.completed(2)
        memory_store.put(mine, "last")
        memory_store.commit(committed_us=now_us())
        stream.completed(3)
        wait_until(lambda: observed(endpoint) == 2, "both to be noted")
    assert stream.client.kinds().count("data") > 3


def test_ends_by_reason(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream() as stream:
        stream.completed()
    wait_until(lambda: endpoint.traffic.ended() == {"client gone": 1}, "the device to be gone")
    with endpoint.stream() as stream:
        stream.completed()
        memory_store.replace_config(RULES)
        stream.to_the_end()
    wait_until(lambda: endpoint.traffic.ended().get("sync config replaced") == 1, "the end to be counted")
