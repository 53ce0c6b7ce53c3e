"""Devices beyond a limit: they get what fits and are told of the rest, whatever changes while they are connected."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from headwater.api.limits import network_of
from headwater.api.streams.session import LeftOutMemory
from headwater.sync.request import RequestLimits
from tests.support.fix_api import Endpoint
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient

Start = Callable[..., Endpoint]
LIMIT = 10
SETTING = "api.parameters.max_buckets_per_connection"
FULL = LIMIT - 1  # memberships that fit beside the bucket of the stream `mine`

RULES = """
config: {edition: 3}
streams:
  mine:
    auto_subscribe: true
    priority: 1
    query: SELECT * FROM todos WHERE owner = auth.user_id()
  shared:
    auto_subscribe: true
    query: SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())
"""


def limited(memory_store: MemoryStore, start_endpoint: Start, memberships: int) -> Endpoint:
    """An endpoint with a user of one bucket, and as many others as memberships."""
    memory_store.replace_config(RULES)
    endpoint = start_endpoint(memory_store, requests=RequestLimits(max_buckets=LIMIT))
    memory_store.put(endpoint.bucket("mine", "u1"), "own")
    for number in range(2 * LIMIT):
        memory_store.put(endpoint.bucket("shared", f"l{number}"), f"r{number}")
    join(endpoint, memberships)
    return endpoint


def join(endpoint: Endpoint, memberships: int) -> None:
    endpoint.store.set_lookup(endpoint.membership("u1"), [f'["l{number}"]' for number in range(memberships)])
    endpoint.store.commit()


def rows(memberships: int) -> set[tuple[str, str]]:
    return {("todos", "own"), *(("todos", f"r{number}") for number in range(memberships))}


def errors(client: ModelClient) -> list[str]:
    """What the newest `checkpoint` line says of streams."""
    checkpoints = [line["checkpoint"] for line in client.lines if "checkpoint" in line]
    streams = checkpoints[-1]["streams"]  # type: ignore[index]
    return [error["message"] for stream in streams for error in stream["errors"]]


def shown(endpoint: Endpoint, client: ModelClient | None = None) -> ModelClient:
    """A device that connects, gets everything and goes."""
    device = client or ModelClient()
    before = device.completed
    with endpoint.stream("u1", client=device, client_id="phone") as stream:
        return stream.completed(before + 1)


def test_at_the_limit(memory_store: MemoryStore, start_endpoint: Start) -> None:
    client = shown(limited(memory_store, start_endpoint, FULL))
    assert (set(client.rows), errors(client)) == (rows(FULL), [])


def test_beyond_the_limit_a_stream_is_left_out(memory_store: MemoryStore, start_endpoint: Start) -> None:
    client = shown(limited(memory_store, start_endpoint, FULL + 1))
    assert set(client.rows) == rows(0)
    (error,) = errors(client)
    assert "the 10 buckets of stream shared would make 11 in all" in error
    assert f"{SETTING} allows 10" in error


def test_outgrowing_the_limit_shows_on_reconnect(memory_store: MemoryStore, start_endpoint: Start) -> None:
    endpoint = limited(memory_store, start_endpoint, FULL)
    with endpoint.stream("u1", client_id="phone") as stream:
        stream.completed()
        join(endpoint, FULL + 1)
        client = stream.to_the_end()
    assert set(client.rows) == rows(FULL)
    assert "checkpoint_diff" not in client.kinds()
    shown(endpoint, client)
    assert (set(client.rows), len(errors(client))) == (rows(0), 1)


def test_hysteresis_over_connections(memory_store: MemoryStore, start_endpoint: Start) -> None:
    endpoint = limited(memory_store, start_endpoint, FULL + 1)
    client = shown(endpoint)
    for memberships in (FULL, FULL + 1, FULL, LIMIT * 9 // 10 - 1):
        join(endpoint, memberships)
        assert set(shown(endpoint, client).rows) == rows(0)
        assert "and it comes back at 8 or less" in errors(client)[0]
    below = LIMIT * 9 // 10 - 2
    join(endpoint, below)
    assert (set(shown(endpoint, client).rows), errors(client)) == (rows(below), [])
    join(endpoint, FULL)
    assert (set(shown(endpoint, client).rows), errors(client)) == (rows(FULL), [])


def test_hysteresis_on_an_open_stream(memory_store: MemoryStore, start_endpoint: Start) -> None:
    endpoint = limited(memory_store, start_endpoint, FULL + 1)
    mine = endpoint.bucket("mine", "u1")
    below = LIMIT * 9 // 10 - 2
    with endpoint.stream("u1", client_id="phone") as stream:
        stream.completed()
        for number, memberships in enumerate((FULL, below + 1)):
            join(endpoint, memberships)
            memory_store.put(mine, f"note {number}")
            memory_store.commit()
            stream.until(lambda client, row=("todos", f"note {number}"): row in client.rows)  # type: ignore[misc]
        assert len(stream.client.rows) == 3, "the stream goes on, without what was left out"
        join(endpoint, below)
        client = stream.to_the_end()
    shown(endpoint, client)
    assert errors(client) == []
    assert set(client.rows) == rows(below) | {("todos", "note 0"), ("todos", "note 1")}


def test_left_out_is_per_device_and_config(memory_store: MemoryStore, start_endpoint: Start) -> None:
    endpoint = limited(memory_store, start_endpoint, FULL + 1)
    shown(endpoint)
    join(endpoint, FULL)
    with endpoint.stream("u1", client_id="tablet") as stream:
        assert set(stream.completed().rows) == rows(FULL)
    assert set(shown(endpoint).rows) == rows(0)
    memory_store.replace_config(RULES + "# edited")
    assert set(shown(endpoint).rows) == rows(FULL)


def test_lookup_limit(memory_store: MemoryStore, start_endpoint: Start) -> None:
    memory_store.replace_config(RULES)
    endpoint = start_endpoint(memory_store, requests=RequestLimits(max_results=LIMIT))
    memory_store.put(endpoint.bucket("mine", "u1"), "own")
    join(endpoint, LIMIT + 1)
    client = shown(endpoint)
    assert set(client.rows) == rows(0)
    assert "api.parameters.max_parameter_query_results allows 10" in errors(client)[0]


def test_left_out_memory_is_bounded() -> None:
    memory = LeftOutMemory(most=5)
    for number in range(4):
        memory.put(f"d{number}", 1, frozenset({"a", "b"}))
    assert [len(memory.of(f"d{number}", 1)) for number in range(4)] == [0, 0, 2, 2]
    memory.put("d2", 1, frozenset())
    memory.put("d4", 1, frozenset({"a", "b", "c"}))
    assert [len(memory.of(f"d{number}", 1)) for number in range(5)] == [0, 0, 0, 2, 3]
    memory.put("d5", 1, frozenset("abcdefg"))
    assert [len(memory.of(f"d{number}", 1)) for number in range(6)] == [0, 0, 0, 2, 3, 0]


NAMES = 300
LONG = 20_000
MOST_BYTES = 1000


def leaving_out() -> Callable[[str], object]:
    memory = LeftOutMemory()
    return lambda name: memory.put(name, 1, frozenset({"a"}))


@pytest.mark.parametrize("use", [leaving_out(), network_of], ids=["device", "address"])
def test_memory_of_a_long_name(use: Callable[[str], object]) -> None:
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(NAMES):
            use(f"{number}{'x' * LONG}")
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / NAMES < MOST_BYTES
    finally:
        tracemalloc.stop()
