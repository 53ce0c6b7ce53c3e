"""Numbering the writes of clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import httpx
import pytest

from headwater.api import checkpoints
from headwater.api.checkpoints import MAX_WAITING, MAX_WAITING_OF_USER, WriteCheckpointBatcher
from headwater.api.errors import TooManyRequestsError
from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.threads import StoreThreads
from headwater.oplog.lsn import Lsn
from headwater.source.connect import SourceUnreachableError
from headwater.storage.contract.reader import WriteCheckpoint
from tests.support.fix_api import RULES, Endpoint, PlayedHead, make_token, running
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint


def number(endpoint: Endpoint, user: str = "u1", client_id: str | None = None) -> str:
    answer = endpoint.write_checkpoint(user, client_id)
    assert answer.status_code == 200
    checkpoint: str = answer.json()["data"]["write_checkpoint"]
    return checkpoint


def test_numbers_are_per_client(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    assert [number(endpoint, "u1", "a"), number(endpoint, "u1", "a"), number(endpoint, "u1", "b")] == ["1", "2", "1"]
    assert number(endpoint, "u1") == "1"
    assert number(endpoint, "u2", "a") == "1"
    assert memory_store.write_checkpoint("u1/a") is not None
    assert memory_store.write_checkpoint("u1") is not None


def test_user_ids_with_a_slash(endpoint: Endpoint) -> None:
    clients = [("a2", "b/c"), ("a2/b", "c"), ("a2/b/c", None), ("a2%2Fb", "c"), ("a2", "b%2Fc"), ("a2%2Fb/c", None)]
    assert [number(endpoint, user, client_id) for user, client_id in clients] == ["1"] * len(clients)


def test_number_stands_for_the_end_of_the_log(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    endpoint.head.lsns = {"default": Lsn(77)}
    number(endpoint, "u1", "a")
    write = memory_store.write_checkpoint("u1/a")
    assert write is not None
    assert write.lsns == {"default": 77}


class WatchedStore(MemoryStore):
    """Notes how many write checkpoints were read at once."""

    most_read = 0

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        found = super().write_checkpoints(after_seq)
        self.most_read = max(self.most_read, len(found))
        return found


def test_start_does_not_read_all_numbers(start_endpoint: StartEndpoint) -> None:
    store = WatchedStore()
    store.replace_config(RULES)
    store.put("unrelated", "1")
    store.commit()
    store.create_write_checkpoint([f"u{user}/a" for user in range(1000)], {"default": Lsn(1)})
    endpoint = start_endpoint(store)
    with endpoint.stream("u1", client_id="a") as stream:
        assert number(endpoint, "u1", "a") == "2"
        store.commit()
        stream.until(lambda client: client.write_checkpoint == 2)
    assert store.most_read < 10


class HeldHead(PlayedHead):
    """A source that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def advance_past(self, sources: Collection[str] | None = None) -> Mapping[str, Lsn]:
        lsns = await super().advance_past(sources)
        await self.go.wait()
        return lsns


def numbered(store: MemoryStore, head: HeldHead, *batches: Sequence[str]) -> list[int | BaseException]:
    """What the keys of these batches get, where each batch comes once the one before is at the source."""

    async def story() -> list[int | BaseException]:
        threads = StoreThreads(ChunkCache(store, 0), 1)
        writes = WriteCheckpointBatcher(store, threads, head, created=lambda: None)
        tasks = []
        for batch in batches:
            tasks += [asyncio.create_task(writes.create(key)) for key in batch]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        head.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await writes.close()
        threads.close()
        return outcomes

    return asyncio.run(story())


def test_waiting_requests_share_one_look_at_the_source(memory_store: MemoryStore) -> None:
    head = HeldHead()
    assert numbered(memory_store, head, ["u0"], ["u1"] * 8 + ["u2"]) == [1] * 10
    assert head.asked == 2


def test_too_many_waiting_requests(memory_store: MemoryStore) -> None:
    *taken, refused = numbered(memory_store, HeldHead(), ["u1"] * (MAX_WAITING + 1))
    assert taken == [1] * MAX_WAITING
    assert isinstance(refused, TooManyRequestsError)


def test_unreachable_source_is_503(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.head.failure = SourceUnreachableError("the source database cannot be reached: no route to db.internal")
    answer = endpoint.write_checkpoint()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "HW_2001"
    assert "db.internal" not in answer.text
    assert "db.internal" in caplog.text
    endpoint.head.failure = None
    assert number(endpoint) == "1"


def test_client_id_with_a_nul(endpoint: Endpoint) -> None:
    assert endpoint.write_checkpoint(client_id="a\0b").status_code == 400


def test_close(memory_store: MemoryStore) -> None:
    with running(memory_store) as endpoint:
        number(endpoint)
    assert endpoint.head.closed


def test_failing_key_fails_alone(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    number_all = memory_store.create_write_checkpoint

    def picky(keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        if "bad" in keys:
            raise ValueError("not this one")
        return number_all(keys, lsns)

    monkeypatch.setattr(memory_store, "create_write_checkpoint", picky)
    first, second, bad, third = numbered(memory_store, HeldHead(), ("u0", "u1", "bad", "u1"))
    assert [first, second, third] == [1, 1, 1], "of one key asked for together there is one number"
    assert isinstance(bad, ValueError)


def request(endpoint: Endpoint, body: object, user: str = "u1") -> httpx.Response:
    headers = {"authorization": f"Token {make_token(user)}"}
    return endpoint.http.post("/sync/checkpoint-request", json=body, headers=headers)


def test_requested_numbers(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    def stored(chosen: object) -> object:
        answer = request(endpoint, {"client_id": "c", "checkpoint_request_id": chosen})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert stored("7") == {"data": {"checkpoint_request_id": "7"}}
    assert stored(5) == {"data": {"checkpoint_request_id": "7"}}
    assert stored(str(2**63 - 2)) == {"data": {"checkpoint_request_id": str(2**63 - 2)}}
    assert memory_store.write_checkpoint("u1/c") is not None


def test_requested_number_on_a_stream(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    endpoint.head.lsns = {"default": Lsn(2)}
    request(endpoint, {"client_id": "c", "checkpoint_request_id": "41"})
    with endpoint.stream("u1", client_id="c") as stream:
        assert stream.completed().write_checkpoint is None
        memory_store.commit()
        assert stream.until(lambda client: client.write_checkpoint is not None).write_checkpoint == 41


def newest(store: MemoryStore) -> int:
    state = store.newest()
    assert state is not None
    return state.checkpoint.op_id


def wait_for_the_source(endpoint: Endpoint) -> httpx.Response:
    return endpoint.http.get("/write-checkpoint.json", headers={"authorization": f"Token {make_token()}"})


def test_oldest_route_waits_for_replication(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    assert wait_for_the_source(endpoint).json() == {"data": {"checkpoint": str(newest(memory_store))}}
    endpoint.head.lsns = {"default": Lsn(2)}
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(wait_for_the_source, endpoint)
        wait_until(lambda: memory_store.write_checkpoints(1) != [], "the request waits")
        assert not waiting.done()
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.commit()
        assert waiting.result().json() == {"data": {"checkpoint": str(newest(memory_store))}}
    assert endpoint.http.get("/write-checkpoint.json").status_code == 401


def test_oldest_route_times_out(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "WAIT_SECONDS", 0.1)
    endpoint.head.lsns = {"default": Lsn(2)}
    late = wait_for_the_source(endpoint)
    assert (late.status_code, late.json()["error"]["code"], late.headers["retry-after"]) == (503, "HW_6006", "5")


def test_oldest_route_at_shutdown(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    endpoint.head.lsns = {"default": Lsn(2)}
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(wait_for_the_source, endpoint)
        wait_until(lambda: memory_store.write_checkpoints(0) != [], "the request waits")
        endpoint.terminate()
        assert waiting.result().json()["error"]["code"] == "PSYNC_S2003"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"checkpoint_request_id": "1"}, "client_id"),
        ({"client_id": "c"}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": "0"}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": -1}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": "1.5"}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": 1.5}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": True}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": 2**53}, "checkpoint_request_id"),
        ({"client_id": "c", "checkpoint_request_id": str(2**63)}, "checkpoint_request_id"),
        ({"client_id": 7, "checkpoint_request_id": "1"}, "client_id"),
        ([], "body"),
    ],
)
def test_invalid_request(endpoint: Endpoint, body: object, named: str) -> None:
    refused = request(endpoint, body)
    assert refused.status_code == 400
    assert named in refused.text


def test_request_without_token(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    body = {"client_id": "c", "checkpoint_request_id": "1"}
    assert endpoint.http.post("/sync/checkpoint-request", json=body).status_code == 401
    assert memory_store.write_checkpoints(0) == []


def test_waiting_requests_per_user_are_limited(endpoint: Endpoint) -> None:
    held = threading.Event()
    advance = endpoint.head.advance_past

    async def waiting(sources: Collection[str] | None = None) -> Mapping[str, Lsn]:
        await asyncio.to_thread(held.wait, 10)
        return await advance(sources)

    endpoint.head.advance_past = waiting  # type: ignore[method-assign]
    with ThreadPoolExecutor(MAX_WAITING_OF_USER + 5) as clients:
        greedy = [clients.submit(endpoint.write_checkpoint, "u1", f"c{n}") for n in range(MAX_WAITING_OF_USER + 3)]
        refused = [answer.result() for answer in islice(as_completed(greedy), 3)]
        other = clients.submit(endpoint.write_checkpoint, "u2")
        held.set()
        assert other.result().status_code == 200
        assert [(answer.status_code, answer.headers["retry-after"]) for answer in refused] == [(429, "5")] * 3
        assert sorted(answer.result().status_code for answer in greedy) == [200] * MAX_WAITING_OF_USER + [429] * 3
