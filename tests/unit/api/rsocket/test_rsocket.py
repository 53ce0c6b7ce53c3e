"""The stream over a websocket: RSocket's rules, its flow control, and whoever breaks them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import bson
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from headwater.api.limits import StreamLimits
from headwater.api.rsocket import connection, frames
from headwater.sync import states
from tests.support import rsocket_client as client
from tests.support.fix_api import RULES, Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient
from tests.support.rsocket_client import Requester, requester
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint


@pytest.fixture
def filled(memory_store: MemoryStore, endpoint: Endpoint) -> Endpoint:
    bucket = endpoint.bucket("mine", "u1")
    for row in range(2500):
        memory_store.put(bucket, f"r{row}", json.dumps({"id": f"r{row}", "n": row}))
    memory_store.commit()
    return endpoint


@pytest.fixture
def connected(endpoint: Endpoint) -> Iterator[Requester]:
    with requester(str(endpoint.http.base_url)) as found:
        yield found


def ended(found: Requester) -> tuple[int, str]:
    """The error that a connection ends with."""
    received = found.receive()
    assert (received.stream, received.kind) == (0, client.ERROR)
    with pytest.raises(ConnectionClosed):
        found.receive()
    return received.error


def test_rows_and_later_changes(filled: Endpoint, memory_store: MemoryStore, connected: Requester) -> None:
    model = ModelClient()
    connected.set_up(make_token())
    connected.request()
    for document in connected.documents("checkpoint_complete"):
        model.receive(json.dumps(document).encode() + b"\n")
    assert len(model.rows) == 2500
    memory_store.remove(filled.bucket("mine", "u1"), "r7")
    memory_store.commit()
    for document in connected.documents("checkpoint_complete"):
        model.receive(json.dumps(document).encode() + b"\n")
    assert len(model.rows) == 2499


def test_credit(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    connected.request(credit=1)
    assert "checkpoint" in connected.receive().document
    with pytest.raises(TimeoutError):
        connected.receive(0.3)
    connected.more(2)
    assert ["data" in connected.receive().document for _ in range(2)] == [True, True]
    with pytest.raises(TimeoutError):
        connected.receive(0.3)


def test_cancel(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    connected.request(credit=1)
    connected.receive()
    connected.cancel()
    connected.request(credit=1000, stream=3)
    assert "checkpoint" in next(connected.documents("checkpoint_complete"))


def test_fragmented_request(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    metadata = client.with_metadata({"path": "/sync/stream"})
    connected.send(client.frame(1, client.REQUEST_STREAM, client.METADATA | client.FOLLOWS, b"\0\0\0\x0a" + metadata))
    body = json.dumps({"client_id": "c" * 50}).encode()
    connected.send(client.frame(1, client.PAYLOAD, client.FOLLOWS, body[:20]))
    connected.send(client.frame(1, client.PAYLOAD, client.NEXT, body[20:]))
    assert "checkpoint" in connected.receive().document


def test_keepalive(connected: Requester) -> None:
    connected.set_up(make_token())
    connected.send(client.frame(0, client.KEEPALIVE, client.RESPOND, bytes(8) + b"hello"))
    received = connected.receive()
    assert (received.kind, received.flags & client.RESPOND, received.body[8:]) == (client.KEEPALIVE, 0, b"hello")


@pytest.mark.parametrize("scheme", ["token", "BEARER  ", " Bearer\t"])
def test_token_scheme_in_any_case(filled: Endpoint, connected: Requester, scheme: str) -> None:
    connected.send(client.setup({"token": f"{scheme} {make_token()}"}))
    connected.request()
    assert "checkpoint" in connected.receive().document


@pytest.mark.parametrize(
    ("token", "code"), [("Token nonsense", "PSYNC_S2101"), ("", "PSYNC_S2106"), (None, "PSYNC_S2106")]
)
def test_bad_token_is_refused_at_setup(connected: Requester, token: str | None, code: str) -> None:
    connected.send(client.setup({} if token is None else {"token": token}))
    number, message = ended(connected)
    assert number == frames.ErrorCode.REJECTED_SETUP
    assert message.startswith(f"[{code}] ")


@pytest.mark.parametrize("mime", ["application/json", "application/bson"])
def test_large_metadata_is_not_parsed(connected: Requester, monkeypatch: pytest.MonkeyPatch, mime: str) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(bson, "decode", decoded.append)
    monkeypatch.setattr(orjson, "loads", decoded.append)
    metadata = b"[" * 60_000 if mime == "application/json" else b"\x0d\0\1\0\0\0\0" * 8_000
    kind = bytes([len(mime)]) + mime.encode()
    body = struct.pack(">HHII", 1, 0, 20_000, 90_000) + kind + kind + len(metadata).to_bytes(3, "big") + metadata
    connected.send(client.frame(0, client.SETUP, client.METADATA, body))
    assert ended(connected)[1].startswith("[PSYNC_S2001] the metadata has too many values")
    assert decoded == []


@pytest.mark.parametrize("credit", [0, 1])
def test_setup_beyond_the_stream_limit(memory_store: MemoryStore, start_endpoint: StartEndpoint, credit: int) -> None:
    endpoint = start_endpoint(memory_store, streams=StreamLimits(1))
    with endpoint.stream() as stream, requester(str(endpoint.http.base_url)) as second:
        stream.completed()
        second.set_up(make_token())
        number, message = ended(second)
    assert number == frames.ErrorCode.REJECTED_SETUP
    assert message.startswith("[PSYNC_S2304] ")


def test_invalid_request_ends_itself_alone(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    connected.request(body={"buckets": 1})
    received = connected.receive()
    assert (received.stream, received.kind) == (1, client.ERROR)
    assert received.error[1].startswith("[PSYNC_S2001] ")
    connected.request(stream=3)
    assert connected.receive().stream == 3


def test_unknown_path(connected: Requester) -> None:
    connected.set_up(make_token())
    content = struct.pack(">I", 1) + client.with_metadata({"path": "/admin"}, b"{}")
    connected.send(client.frame(1, client.REQUEST_STREAM, client.METADATA, content))
    assert connected.receive().error[1].startswith("[PSYNC_S2002] ")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (client.setup({}, mime="text/plain"), frames.ErrorCode.UNSUPPORTED_SETUP),
        (client.setup({}, flags=0x40), frames.ErrorCode.UNSUPPORTED_SETUP),
        (client.frame(1, client.REQUEST_STREAM, 0, b"\0\0\0\x01{}"), frames.ErrorCode.INVALID_SETUP),
        (b"", frames.ErrorCode.INVALID_SETUP),
        (b"\0\0\0", frames.ErrorCode.INVALID_SETUP),
        (client.setup({})[:20], frames.ErrorCode.INVALID_SETUP),
        (client.frame(0, client.SETUP, 0, b"\0\x02" + bytes(20)), frames.ErrorCode.INVALID_SETUP),
        ("text", frames.ErrorCode.INVALID_SETUP),
    ],
)
def test_invalid_setup(endpoint: Endpoint, connected: Requester, sent: bytes | str, code: int) -> None:
    connected.websocket.send(sent)
    assert ended(connected)[0] == code
    assert endpoint.refused().get("HW_6028", 0) == (code == frames.ErrorCode.INVALID_SETUP)


@pytest.mark.parametrize(
    "sent",
    [
        client.setup({}),
        client.frame(1, client.REQUEST_N, 0, bytes(4)),
        client.frame(0, client.REQUEST_STREAM, 0, b"\0\0\0\x01{}"),
        client.frame(1, 0x3D),
        client.frame(1, client.REQUEST_STREAM, client.METADATA, b"\0\0\0\x01\xff\xff\xff{}"),
    ],
)
def test_protocol_violation_after_setup(connected: Requester, sent: bytes) -> None:
    connected.set_up(make_token())
    connected.send(sent)
    assert ended(connected)[0] == frames.ErrorCode.CONNECTION_ERROR


def test_endless_request(connected: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REQUEST", 1000)
    connected.set_up(make_token())
    connected.send(client.frame(1, client.REQUEST_STREAM, client.FOLLOWS, b"\0\0\0\x01" + b"{" * 900))
    connected.send(client.frame(1, client.PAYLOAD, client.FOLLOWS, b" " * 900))
    assert ended(connected)[0] == frames.ErrorCode.CONNECTION_ERROR


def test_streams_per_connection_are_limited(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    for number in range(1, 2 * connection.MOST_STREAMS + 2, 2):
        connected.request(credit=1, stream=number)
    kinds = [connected.receive().kind for _ in range(connection.MOST_STREAMS + 1)]
    assert sorted(kinds) == [client.PAYLOAD] * connection.MOST_STREAMS + [client.ERROR]


def test_lifetime_without_keepalive(endpoint: Endpoint, connected: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_LIFETIME", 0.2)
    connected.set_up(make_token())
    assert ended(connected)[0] == frames.ErrorCode.CONNECTION_ERROR


def test_disconnect_frees_the_place(memory_store: MemoryStore, start_endpoint: StartEndpoint) -> None:
    endpoint = start_endpoint(memory_store, streams=StreamLimits(1))
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token())
        found.request()
        assert "checkpoint" in found.receive().document
        found.websocket.socket.close()
    wait_until(lambda: is_admitted(endpoint), "the place to be free again")


def is_admitted(endpoint: Endpoint) -> bool:
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token())
        found.request()
        return found.receive().kind == client.PAYLOAD


def test_stalled_stream(
    memory_store: MemoryStore, start_endpoint: StartEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its SDK takes a connection for alive as long as keepalives are answered."""
    monkeypatch.setattr(states, "KEEPALIVE", 0.2)
    endpoint = start_endpoint(memory_store, streams=StreamLimits(client_read_timeout_seconds=0.3))
    with requester(str(endpoint.http.base_url)) as found:
        found.set_up(make_token())
        found.request(credit=1)
        assert "checkpoint" in found.receive().document
        received = found.receive()
        assert (received.stream, received.kind) == (1, client.ERROR)
        assert received.error[1].startswith("[HW_6020, PSYNC_S2001] ")


def test_config_replaced_without_credit(filled: Endpoint, memory_store: MemoryStore, connected: Requester) -> None:
    connected.set_up(make_token())
    connected.request(credit=1)
    assert "checkpoint" in connected.receive().document
    memory_store.replace_config(RULES)
    memory_store.wake()
    assert connected.receive().completes


def test_cancelled_fragments_free_their_place(filled: Endpoint, connected: Requester) -> None:
    connected.set_up(make_token())
    for number in range(1, 21, 2):
        connected.send(client.frame(number, client.REQUEST_STREAM, client.FOLLOWS, b"\0\0\0\x01{"))
        connected.cancel(number)
    connected.request(stream=21)
    assert connected.receive().stream == 21


@pytest.mark.parametrize("pieces", [1, 3])
def test_unfinished_requests_are_limited_in_all(connected: Requester, pieces: int) -> None:
    connected.set_up(make_token())
    for number in range(pieces):
        content = b"\0\0\0\x01" + b" " * (connection.MAX_REQUEST // pieces + 1)
        connected.send(client.frame(2 * number + 1, client.REQUEST_STREAM, client.FOLLOWS, content))
    assert ended(connected)[0] == frames.ErrorCode.CONNECTION_ERROR


def test_unfinished_request_times_out(connected: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.1)
    connected.set_up(make_token())
    connected.send(client.frame(1, client.REQUEST_STREAM, client.FOLLOWS, b"\0\0\0\x01{"))
    with pytest.raises(ConnectionClosed):
        connected.receive()


@given(st.binary(max_size=200))
def test_read_frame_of_any_bytes(content: bytes) -> None:
    try:
        frames.read_frame(content)
    except frames.FrameError:
        return
