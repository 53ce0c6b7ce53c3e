"""The stock SDKs, of Node and of the web, over every transport: what an app may ask of them while they sync.

The endpoint is real, its store in memory: so that a test decides when which row comes.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from headwater.api.auth.claims import TOLERANCE
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync import states
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_devices import WAYS, Device, DeviceFactory, Sdk, Transport
from tests.support.fix_logs import facts_said
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

RULES = """
config: {edition: 3}
streams:
  first: {auto_subscribe: true, priority: 1, query: SELECT * FROM todos WHERE owner = auth.user_id()}
  last: {auto_subscribe: true, priority: 3, query: SELECT * FROM others WHERE owner = auth.user_id()}
  chosen: {query: SELECT * FROM topics WHERE topic = subscription.parameter('topic')}
"""
SCHEMA = {"todos": {"text": "text"}}
IDS = "SELECT id FROM todos ORDER BY id"
CLOSED = "sync stream closed"

Open = Callable[..., Device]


def ways(*often: tuple[Sdk, Transport]) -> pytest.MarkDecorator:
    """Every SDK over every transport, of which some are tested often."""
    return pytest.mark.parametrize(
        ("sdk", "transport"), [pytest.param(*way, marks=[] if way in often else pytest.mark.long) for way in WAYS]
    )


@pytest.fixture
def endpoint(start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore) -> Endpoint:
    memory_store.replace_config(RULES)
    return start_endpoint(memory_store)


@pytest.fixture
def opened(endpoint: Endpoint, device_factory: DeviceFactory, sdk: Sdk, transport: Transport) -> Open:
    """A device of the user u1."""

    def start(token: str | None = None) -> Device:
        url = str(endpoint.http.base_url)
        return device_factory(url, token or make_token(), SCHEMA, sdk=sdk, transport=transport)

    return start


def fill(endpoint: Endpoint, stream: str, value: str, *ids: str, text: str = "") -> None:
    for row in ids:
        endpoint.store.put(endpoint.bucket(stream, value), row, json.dumps({"text": text}))
    endpoint.store.commit()


def shows(device: Device, *ids: str) -> None:
    device.wait_for(IDS, [{"id": each} for each in sorted(ids)])


@contextmanager
def held_back(store: MemoryStore, held: str) -> Iterator[None]:
    """No chunk of a bucket beyond its first is read before the end of the context."""
    read, released = store.chunk, threading.Event()

    def chunk(bucket: str, after: OpId, upto: OpId) -> Chunk:
        if bucket == held and after:
            released.wait(60)
        return read(bucket, after, upto)

    store.chunk = chunk  # type: ignore[method-assign]
    try:
        yield
    finally:
        released.set()


@ways(("node", "ndjson"), ("node", "websocket"), ("python", "ndjson"))
def test_priority_rows_show_first(endpoint: Endpoint, opened: Open) -> None:
    endpoint.store.chunk_ops = 1
    fill(endpoint, "first", "u1", "first")
    fill(endpoint, "last", "u1", "last 1", "last 2", text=random.Random(1).randbytes(300_000).hex())
    device = opened()
    with held_back(endpoint.store, endpoint.bucket("last", "u1")):
        device.connect()
        shows(device, "first")
        assert device.status()["has_synced"] is False
    device.wait_synced()
    shows(device, "first", "last 1", "last 2")


@ways(("node", "websocket"), ("python", "ndjson"))
def test_subscription_comes_and_goes(endpoint: Endpoint, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "KEEPALIVE", 0.3)  # a device looks at its clock when it hears of the service
    for topic in ("a", "b", "c"):
        fill(endpoint, "chosen", topic, f"of {topic}")
    device = opened()
    # Not short: the SDKs' core lengthens a subscription and drops what is over in two statements, each with its own
    # clock, so that it loses a living one when as many seconds end between them.
    device.subscribe("chosen", {"topic": "a"}, ttl=3)
    device.subscribe("chosen", {"topic": "b"}, ttl=4)
    device.connect()
    shows(device, "of a", "of b")
    device.subscribe("chosen", {"topic": "c"}, ttl=3600, priority=0)
    shows(device, "of a", "of b", "of c")
    for topic in ("a", "b", "c"):
        device.unsubscribe("chosen", {"topic": topic})
    shows(device, "of c")
    fill(endpoint, "chosen", "c", "later")
    shows(device, "later", "of c")


@ways(("node", "ndjson"), ("python", "ndjson"))
def test_expiring_token_is_replaced_in_time(endpoint: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    device = opened()
    device.set_token(make_token(exp=int(time.time() + states.WARNING + 2)))
    device.set_following_token(make_token())
    device.connect()
    wait_until(lambda: bool(facts_said(caplog, CLOSED)), "another stream")
    fill(endpoint, "first", "u1", "row")
    shows(device, "row")
    assert [end["close_reason"] for end in facts_said(caplog, CLOSED)] == ["client gone"]
    assert device.status()["download_error"] is None


@ways(("node", "websocket"), ("python", "websocket"))
@pytest.mark.parametrize("seconds", [-600, -1], ids=["refused", "ended"])
def test_expired_token_is_replaced_at_once(
    endpoint: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    fill(endpoint, "first", "u1", "row")
    device = opened()
    now = int(time.time())
    device.set_token(make_token(iat=now - 1200, exp=now + seconds))
    device.set_following_token(make_token())
    device.connect()
    shows(device, "row")
    assert device.credentials_fetched() == 2
    ends = [end["close_reason"] for end in facts_said(caplog, CLOSED)]
    assert ends == (["token expired"] if seconds > -TOLERANCE else [])


@ways(("web", "websocket"), ("python", "bson"))
def test_reconnect_gets_only_news(endpoint: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    fill(endpoint, "first", "u1", *(f"old {number}" for number in range(200)))
    device = opened()
    closed = 0

    def sent() -> Mapping[str, object]:
        """What the service says of the device's next stream, once that is over."""
        nonlocal closed
        device.disconnect()
        closed += 1
        wait_until(lambda: len(facts_said(caplog, CLOSED)) >= closed, "the end of the stream")
        return facts_said(caplog, CLOSED)[closed - 1]

    device.connect()
    device.wait_synced()
    assert sent()["operations"] == 200
    fill(endpoint, "first", "u1", "new 1", "new 2")
    endpoint.store.remove(endpoint.bucket("first", "u1"), "old 7")
    fill(endpoint, "last", "u1", "other")
    device.connect()
    # The hub may still offer the first two alone, which would be 202 rows as well
    device.wait_for("SELECT count(*) AS n, sum(id = 'old 7') AS old FROM todos", [{"n": 202, "old": 0}])
    device.wait_status(connected=True, downloading=False)  # rows show before the checkpoint is complete
    assert sent()["operations"] == 4
    device.connect()
    device.wait_status(connected=True, downloading=False)
    assert sent()["operations"] == 0


def test_file_moves_between_sdks(endpoint: Endpoint, device_factory: DeviceFactory) -> None:
    shown: list[str] = []
    sdks: tuple[Sdk, ...] = ("node", "python", "node")
    for number, sdk in enumerate(sdks):
        device = device_factory(str(endpoint.http.base_url), make_token(), SCHEMA, sdk=sdk, name="shared")
        device.execute("INSERT INTO todos (id, text) VALUES (?, 'waits')", f"written {number}")
        device.execute("DELETE FROM todos WHERE id = ?", f"written {number}")
        shown.append(f"row {number}")
        fill(endpoint, "first", "u1", shown[-1])
        assert device.query("SELECT count(*) AS waiting FROM ps_crud") == [{"waiting": 2 * number + 2}]
        device.connect()
        rows = "SELECT row_id AS id FROM ps_oplog ORDER BY row_id"  # local writes hold back what shows
        device.wait_for(rows, [{"id": each} for each in shown])
        device.close()
