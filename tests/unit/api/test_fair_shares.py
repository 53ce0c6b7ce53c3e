"""A user with many expensive streams delays nobody else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.fix_api import Endpoint
from tests.support.fix_headwater import wait_until
from tests.support.model_client import ModelClient
from tests.support.slow_store import SlowStore

GREEDY = 10


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


def test_others_can_download_while_nobody_waits_for_what_is_read(
    slow_store: SlowStore, start_endpoint: Callable[..., Endpoint]
) -> None:
    endpoint = start_endpoint(slow_store, max_data_fetch_concurrency=2)
    for user in ("greedy", "u1"):
        slow_store.put(endpoint.bucket("mine", user), user)
    slow_store.commit()
    slow_store.slow = {endpoint.bucket("mine", "greedy")}
    try:
        for _ in range(GREEDY):
            with endpoint.stream("greedy") as stream:
                stream.until(lambda client: "checkpoint" in client.kinds())
            wait_until(lambda: endpoint.open_streams() == 0, "it to be gone")
        assert ("todos", "u1") in shown(endpoint, "u1").rows
    finally:
        slow_store.go.set()


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
