"""A user with many expensive streams delays nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from headwater.api.parsing import SMALL
from headwater.api.rsocket import connection
from headwater.api.streams import endpoint as stream_endpoint
from headwater.sync.request import BodyLimits, StreamRequest, parse_stream_request
from tests.support.fix_api import Endpoint, make_token
from tests.support.model_client import ModelClient
from tests.support.rsocket_client import requester
from tests.support.slow_store import SlowStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint

GREEDY = 10


@pytest.fixture
def endpoint(slow_store: SlowStore, start_endpoint: StartEndpoint) -> Endpoint:
    return start_endpoint(slow_store)


def shown(endpoint: Endpoint, user: str) -> ModelClient:
    """A device that connects, gets everything and goes."""
    with endpoint.stream(user) as stream:
        return stream.completed()


def test_connecting_meanwhile(endpoint: Endpoint, slow_store: SlowStore) -> None:
    slow_store.slow = {endpoint.membership("greedy")}
    with ThreadPoolExecutor(GREEDY) as pool:
        try:
            greedy = [pool.submit(shown, endpoint, "greedy") for _ in range(GREEDY)]
            wait_until(lambda: endpoint.open_streams() == GREEDY, "all requests to be there")
            shown(endpoint, "u1")
        finally:
            slow_store.go.set()
        assert [each.result().completed for each in greedy] == [1] * GREEDY


def test_downloading_meanwhile(slow_store: SlowStore, start_endpoint: StartEndpoint) -> None:
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


def test_downloading_after_the_greedy_left(slow_store: SlowStore, start_endpoint: StartEndpoint) -> None:
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


class Reader:
    """Stands in for a function that parses requests. Those of the greedy user take until `go` says so, one by one."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.begun: list[str | None] = []

    def __call__(self, body: bytes, limits: BodyLimits) -> StreamRequest:
        asked = parse_stream_request(body, limits)
        if len(body) > SMALL:
            self.begun.append(asked.client_id)
            assert self.go.acquire(timeout=100)
        return asked


LARGE = {"text": "x" * 500_000}


def over_http(endpoint: Endpoint, user: str) -> None:
    with endpoint.stream(user, client_id=user, app_metadata=LARGE) as stream:
        stream.completed()


def over_a_websocket(endpoint: Endpoint, user: str) -> None:
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token(user))
        found.request(body={"client_id": user, "app_metadata": LARGE})
        list(found.documents("checkpoint_complete"))


@pytest.mark.parametrize("connect", [over_http, over_a_websocket])
def test_large_requests_are_parsed_one_by_one(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, connect: Callable[[Endpoint, str], None]
) -> None:
    reader = Reader()
    monkeypatch.setattr(connection, "parse_stream_request", reader)
    monkeypatch.setattr(stream_endpoint, "parse_stream_request", reader)
    with ThreadPoolExecutor(GREEDY + 1) as pool:
        try:
            greedy = [pool.submit(connect, endpoint, "greedy") for _ in range(GREEDY)]
            wait_until(lambda: reader.begun == ["greedy"], "the first one to be parsed")
            for _ in range(10):
                assert endpoint.http.get("/probes/liveness").status_code == 200
                shown(endpoint, "u1")
            other = pool.submit(connect, endpoint, "u2")
            for _ in range(100):
                assert endpoint.http.get("/probes/liveness").status_code == 200
            assert reader.begun == ["greedy"]
            reader.go.release(2)
            other.result(60)
            assert reader.begun[:2] == ["greedy", "u2"]
        finally:
            reader.go.release(2 * GREEDY)
        for each in greedy:
            each.result(60)


def test_changes_meanwhile(endpoint: Endpoint, slow_store: SlowStore) -> None:
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
