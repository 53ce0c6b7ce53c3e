"""The sync stream as a client sees it, over HTTP."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from headwater.api.limits import StreamLimits
from headwater.bulk.contract import BulkProgress
from headwater.oplog.lsn import Lsn
from headwater.replication.status import ReplicationState, ReplicatorHealth, to_json
from headwater.source.readiness.finding import Finding
from headwater.sync import states
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient
from tests.support.rsocket_client import requester
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint


def test_headers(endpoint: Endpoint) -> None:
    with endpoint.stream() as stream:
        assert stream.response.headers["content-type"] == "application/x-ndjson"
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert stream.response.headers["cache-control"] == "no-store"


def test_new_client_gets_its_rows(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    memory_store.put(endpoint.bucket("mine", "u1"), "t1", '{"id":"t1","done":0}')
    memory_store.put(endpoint.bucket("mine", "u2"), "t2", '{"id":"t2","done":0}')
    memory_store.commit()
    with endpoint.stream("u1") as stream:
        client = stream.completed()
    assert client.rows == {("todos", "t1"): {"id": "t1", "done": 0}}
    assert client.kinds() == ["checkpoint", "data", "checkpoint_complete"]


def test_commit_reaches_an_open_stream(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = endpoint.bucket("mine", "u1")
    with endpoint.stream("u1") as stream:
        stream.completed()
        memory_store.put(mine, "t1", '{"v":1}')
        memory_store.commit()
        assert stream.completed(2).rows == {("todos", "t1"): {"v": 1}}
        memory_store.remove(mine, "t1")
        memory_store.commit()
        assert stream.completed(3).rows == {}


def test_commit_without_notification_arrives(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream("u1") as stream:
        stream.completed()
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.commit(wake=False)
        assert stream.completed(2).rows == {("todos", "t1"): {}}


def test_membership_adds_and_removes_rows(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    list_1 = endpoint.bucket("shared", "l1")
    memory_store.put(list_1, "i1", '{"v":1}')
    memory_store.commit()
    with endpoint.stream("u1") as stream:
        assert stream.completed().rows == {}
        memory_store.set_lookup(endpoint.membership("u1"), ['["l1"]'])
        memory_store.commit()
        assert stream.completed(2).rows == {("todos", "i1"): {"v": 1}}
        memory_store.put(list_1, "i2", '{"v":2}')
        memory_store.commit()
        assert len(stream.completed(3).rows) == 2
        memory_store.set_lookup(endpoint.membership("u1"), [])
        memory_store.commit()
        assert stream.completed(4).rows == {}


def test_unconcerned_streams_read_nothing(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = {user: endpoint.bucket("mine", user) for user in ("u1", "u2")}
    with endpoint.stream("u1") as one, endpoint.stream("u2") as two:
        one.completed()
        two.completed()
        memory_store.reads.clear()
        memory_store.put(mine["u1"], "t1")
        memory_store.put("nobody's", "t1")
        memory_store.commit()
        one.completed(2)
        assert memory_store.reads == ["snapshot", f"total {mine['u1']}", f"chunk {mine['u1']}"]
        memory_store.put(mine["u2"], "t2")
        memory_store.commit()
        assert two.completed(2).rows == {("todos", "t2"): {}}


def test_clients_of_a_bucket_share_reads(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = endpoint.bucket("mine", "u1")
    with endpoint.stream() as one, endpoint.stream() as two, endpoint.stream() as three:
        for stream in (one, two, three):
            stream.completed()
        memory_store.reads.clear()
        memory_store.put(mine, "t1")
        memory_store.commit()
        for stream in (one, two, three):
            assert stream.completed(2).rows == {("todos", "t1"): {}}
        assert memory_store.reads == ["snapshot", f"total {mine}", f"chunk {mine}"]


def test_reconnect_gets_only_what_is_missing(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = endpoint.bucket("mine", "u1")
    memory_store.put(mine, "t1")
    memory_store.commit()
    client = ModelClient()
    with endpoint.stream(client=client) as stream:
        stream.completed()
    memory_store.put(mine, "t2")
    memory_store.commit()
    client.lines.clear()
    with endpoint.stream(client=client) as stream:
        stream.completed(2)
    assert client.kinds() == ["checkpoint", "data", "checkpoint_complete"]
    assert json.dumps(client.lines).count('"op": "PUT"') == 1
    assert len(client.rows) == 2


def test_long_download_while_its_bucket_changes(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    mine = endpoint.bucket("mine", "u1")
    for number in range(5000):
        memory_store.put(mine, str(number), json.dumps({"text": "x" * 200}))
    memory_store.commit()
    with endpoint.stream() as stream:
        stream.until(lambda client: "data" in client.kinds())
        memory_store.put(mine, "late", '{"v":1}')
        memory_store.commit()
        stream.until(lambda client: ("todos", "late") in client.rows)
        assert len(stream.client.rows) == 5001


def test_rows_without_raw_data_keep_their_text(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    memory_store.put(endpoint.bucket("mine", "u1"), "t1", '{"n":1.50}')
    memory_store.commit()
    headers = {"authorization": f"Bearer {make_token()}"}
    with endpoint.http.stream("POST", "/sync/stream", json={"raw_data": False}, headers=headers) as response:
        assert any('"data":{"n":1.50}' in line for line in response.iter_lines())


def test_write_checkpoint_after_its_data(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream(client_id="c1") as stream:
        position = memory_store.commit().lsns["default"]
        stream.completed()
        endpoint.head.lsns = {"default": Lsn(position + 1)}
        answer = endpoint.write_checkpoint(client_id="c1")
        assert answer.json() == {"data": {"write_checkpoint": "1"}}
        memory_store.put(endpoint.bucket("mine", "u1"), "t1")
        memory_store.commit()
        client = stream.until(lambda client: client.write_checkpoint == 1)
        stream.until(lambda client: client.rows != {})
    assert client.write_checkpoint == 1


def test_write_checkpoint_without_a_commit(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream(client_id="c1") as stream:
        stream.completed()
        endpoint.write_checkpoint(client_id="c1")
        assert stream.completed(2).write_checkpoint == 1
    with endpoint.stream(client_id="c2") as other:
        assert other.completed().write_checkpoint is None


def test_config_replaced_ends_streams(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    with endpoint.stream() as stream:
        stream.completed()
        assert memory_store.config is not None
        memory_store.replace_config(memory_store.config.yaml + "\n# edited\n")
        client = stream.to_the_end()
    assert client.kinds()[-1] == "checkpoint_complete"
    with endpoint.stream(client=client) as stream:
        stream.completed(2)


def test_stream_ends_with_its_token(endpoint: Endpoint) -> None:
    with endpoint.stream(token=make_token(exp=int(time.time()) + 5)) as stream:
        client = stream.to_the_end()
    assert client.kinds()[-1] == "token_expires_in"
    assert client.lines[-1] == {"token_expires_in": 0}
    assert client.completed == 1


@pytest.mark.parametrize("limits", [StreamLimits(1), StreamLimits(10, per_user=1)], ids=["in all", "per user"])
def test_stream_limits(memory_store: MemoryStore, start_endpoint: StartEndpoint, limits: StreamLimits) -> None:
    endpoint = start_endpoint(memory_store, streams=limits)
    with endpoint.stream("u1") as stream:
        stream.completed()
        refused = endpoint.post(token=make_token("u1"))
        assert (refused.status_code, refused.content, refused.headers["retry-after"]) == (429, b"", "5")
        if limits.per_user == 1:
            with endpoint.stream("u2") as other:
                other.completed()

    def admitted() -> bool:
        headers = {"authorization": f"Token {make_token()}"}
        with endpoint.http.stream("POST", "/sync/stream", json={}, headers=headers) as response:
            return response.status_code == 200

    wait_until(admitted, "the place to be free again")


def test_progress_before_the_first_snapshot(
    start_endpoint: StartEndpoint,
) -> None:
    store = MemoryStore(config=None)
    health = ReplicatorHealth(ReplicationState.SNAPSHOT, since=1.0, at=1.0, done=BulkProgress(12_000, 80_000, 1, 8))
    store.told = to_json(health)
    endpoint = start_endpoint(store)
    sent = {"authorization": f"Token {make_token()}"}
    asked = [
        endpoint.post(),
        *(endpoint.post(accept=f"application/{form}") for form in ("x-ndjson", "vnd.powersync.bson-stream")),
        endpoint.write_checkpoint(),
        endpoint.http.get("/write-checkpoint.json", headers=sent),
        endpoint.http.post(
            "/sync/checkpoint-request", json={"client_id": "c", "checkpoint_request_id": 1}, headers=sent
        ),
    ]
    for answer in asked:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["code"] == "PSYNC_S2302"
        assert answer.json()["error"]["details"].startswith("12,000 of about 80,000 rows")
    with requester(str(endpoint.http.base_url)) as device:
        device.set_up(make_token())
        device.request()
        _, message = device.receive().error
    assert message.startswith("[PSYNC_S2302] ")  # at which the SDKs keep their credentials
    assert "12,000 of about 80,000 rows" in message
    held_up = Finding("HW_2033", "the new replication slot waits for pid 4711 of database shop", "end it")
    store.told = to_json(replace(health, done=None, findings=(held_up,)))

    def details() -> str:
        return str(endpoint.post().json()["error"]["details"])

    wait_until(lambda: details() == "it is blocked; see `headwater source status`", "the next look")


@pytest.mark.parametrize("written", ["9007199254740993", "-9007199254740993", "18446744073709551617", "1e300"])
def test_user_id_that_json_rounds(endpoint: Endpoint, memory_store: MemoryStore, written: str) -> None:
    mine = endpoint.bucket("mine", "u1").partition("[")[0]
    for user in ("9007199254740992", "9007199254740993", "-9007199254740992", "18446744073709551615"):
        memory_store.put(f"{mine}[{user}]", user)
    memory_store.commit()
    with endpoint.stream(token=make_token(json.loads(written))) as stream:
        client = stream.completed()
    checkpoint: Any = client.lines[0]["checkpoint"]
    assert client.rows == {}
    assert [bucket["bucket"] for bucket in checkpoint["buckets"]] == []
    (error,) = next(each["errors"] for each in checkpoint["streams"] if each["name"] == "mine")
    assert "the user id holds a number beyond 2^53" in error["message"]


def test_stalled_stream_is_cut_off_and_counted(
    memory_store: MemoryStore, start_endpoint: StartEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "KEEPALIVE", 0.2)
    endpoint = start_endpoint(memory_store, streams=StreamLimits(client_read_timeout_seconds=0.3))
    bucket = endpoint.bucket("mine", "u1")
    for row in range(200):
        memory_store.put(bucket, str(row), json.dumps({"text": "x" * 100_000}))
    memory_store.commit()
    with endpoint.stream("u1") as stalled, endpoint.stream("u2") as idle:
        idle.completed()
        wait_until(lambda: bool(endpoint.refused().get("HW_6020")), "the stream to be cut off")
        with pytest.raises(httpx.RemoteProtocolError):
            stalled.to_the_end()
        memory_store.put(endpoint.bucket("mine", "u2"), "1", "{}")
        memory_store.commit()
        idle.completed(2)
