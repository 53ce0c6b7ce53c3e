"""What a server sends is cut and parsed the same however it arrives, and nothing that arrives breaks a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_client.errors import ClientError, ProtocolError
from headwater_client.protocol.lines import (
    BSON,
    NDJSON,
    BucketChecksum,
    CheckpointComplete,
    CheckpointLine,
    Data,
    Line,
    Op,
    PartialCheckpointComplete,
    StreamInfo,
    SubscriptionReason,
    TokenExpiresIn,
    framing_of,
    parse_line,
)
from headwater_client.protocol.session import BeginCheckpoint, Close, Finish, RenewToken, Save, StreamSession, Tick
from headwater_client.storage import layout
from headwater_client.storage.connection import open_connection
from headwater_client.storage.store import DeviceStore
from tests.support.examples import examples
from tests.unit.clients_python.hearing import hear_line

# The worked example of the protocol's description
EXAMPLE: list[dict[str, object]] = [
    {
        "checkpoint": {
            "last_op_id": "9", "write_checkpoint": "2",
            "buckets": [
                {"bucket": "1#mine", "checksum": -1201, "count": 2, "priority": 3, "subscriptions": [{"default": 0}]}
            ],
            "streams": [{"name": "mine", "is_default": True, "errors": []}],
        }
    },
    {
        "data": {
            "bucket": "1#mine", "after": "0", "has_more": False, "next_after": "9",
            "data": [
                {
                    "op_id": "4", "op": "PUT", "object_type": "todos", "object_id": "t1", "checksum": 3000000000,
                    "subkey": "6b/1f", "data": '{"id":"t1","title":"é"}',
                },
                {"op_id": "9", "op": "MOVE", "checksum": 1294966095},
            ],
        }
    },
    {"partial_checkpoint_complete": {"last_op_id": "9", "priority": 1}},
    {"checkpoint_complete": {"last_op_id": "9"}},
    {"token_expires_in": 3580},
    {"of_a_later_version": {"x": 1}},
]  # fmt: skip

LINES: list[Line] = [
    CheckpointLine(
        "9",
        (BucketChecksum("1#mine", -1201, 2, 3, (SubscriptionReason(default=0),)),),
        "2",
        (StreamInfo("mine", True),),
    ),
    Data(
        "1#mine",
        [Op("4", "PUT", 3000000000, "todos", "t1", "6b/1f", '{"id":"t1","title":"é"}'), Op("9", "MOVE", 1294966095)],
    ),
    PartialCheckpointComplete(1),
    CheckpointComplete(),
    TokenExpiresIn(3580),
]

JSON_BODY = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in EXAMPLE)


def bson_body() -> bytes:
    """As the reference server does: numbers past 32 bits are doubles."""
    documents = json.loads(json.dumps(EXAMPLE), parse_int=lambda text: int(text) if int(text) < 2**31 else float(text))
    return b"".join(bson.encode(document) for document in documents)


@pytest.mark.parametrize("kind", [NDJSON, BSON])
@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_framing(kind: str, size: int) -> None:
    body = JSON_BODY if kind == NDJSON else bson_body()
    framing = framing_of(kind)
    lines = [line for start in range(0, len(body), size) for line in framing.feed(body[start : start + size])]
    framing.end()
    assert lines == LINES


@pytest.mark.parametrize("kind", [NDJSON, BSON])
def test_truncated_body(kind: str) -> None:
    framing = framing_of(kind)
    list(framing.feed((JSON_BODY if kind == NDJSON else bson_body())[:-3]))
    with pytest.raises(ProtocolError, match="in the middle"):
        framing.end()


def test_two_keys_and_blank_lines() -> None:
    with pytest.raises(ProtocolError, match="two keys"):
        parse_line(b'{"token_expires_in": 5, "checkpoint_complete": {"last_op_id": "1"}}')
    assert list(framing_of(NDJSON).feed(b"\n  \n\r\n")) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"[]", b"null", b'"x"', b"{}{}", b'{"token_expires_in":"5"}', b'{"checkpoint":{}}', b"\xff",
        b"[" * 100_000,
        b'{"data":{"bucket":"b","data":[{"op_id":"1","op":"SET","checksum":1}]}}',
        b'{"data":{"bucket":"b","data":[{"op_id":1,"op":"PUT","checksum":1}]}}',
        b'{"checkpoint_complete":5}', b'{"partial_checkpoint_complete":{"priority":"1"}}',
    ],
)  # fmt: skip
def test_invalid_line(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_line(line)


def test_line_before_the_first_checkpoint() -> None:
    for line in (LINES[1], LINES[2], LINES[3]):
        with pytest.raises(ProtocolError, match="before the first checkpoint"):
            list(StreamSession().receive(line))


def test_instructions() -> None:
    session = StreamSession()
    done = [instruction for line in LINES for instruction in session.receive(line)]
    assert [type(each) for each in done] == [BeginCheckpoint, Save, Finish, Finish, Tick]
    assert [each.priority for each in done if isinstance(each, Finish)] == [1, None]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, [RenewToken(expired=True), Close()]), (30, [RenewToken(expired=False), Tick()]), (31, [Tick()])],
)
def test_token_is_renewed_in_time(seconds: int, expected: list[object]) -> None:
    assert list(StreamSession().receive(TokenExpiresIn(seconds))) == expected


NUMBERS = st.one_of(st.integers(-5, 20), st.integers())
TEXTS = st.one_of(st.sampled_from(["1", "2", "3", "9", "b", "", "-1", "9223372036854775807", "x" * 100]), st.text())
OPS = st.fixed_dictionaries(
    {"op_id": TEXTS, "op": st.sampled_from(["PUT", "REMOVE", "MOVE", "CLEAR"]), "checksum": NUMBERS},
    optional={"object_type": TEXTS, "object_id": TEXTS, "subkey": TEXTS, "data": TEXTS},
)
SUMS = st.fixed_dictionaries({"bucket": TEXTS, "checksum": NUMBERS}, optional={"count": NUMBERS, "priority": NUMBERS})
FOREIGN = st.one_of(
    st.fixed_dictionaries({"checkpoint": st.fixed_dictionaries({"last_op_id": TEXTS, "buckets": st.lists(SUMS)})}),
    st.fixed_dictionaries(
        {
            "checkpoint_diff": st.fixed_dictionaries(
                {"last_op_id": TEXTS, "updated_buckets": st.lists(SUMS), "removed_buckets": st.lists(TEXTS)}
            )
        }
    ),
    st.fixed_dictionaries({"data": st.fixed_dictionaries({"bucket": TEXTS, "data": st.lists(OPS)})}),
    st.fixed_dictionaries({"checkpoint_complete": st.just({"last_op_id": "1"})}),
    st.fixed_dictionaries({"partial_checkpoint_complete": st.fixed_dictionaries({"priority": NUMBERS})}),
    st.recursive(st.one_of(st.none(), NUMBERS, TEXTS), lambda inner: st.dictionaries(TEXTS, inner), max_leaves=5),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeviceStore]:
    connection = open_connection(tmp_path / "device.db")
    layout.prepare(connection)
    yield DeviceStore(connection, {})
    connection.close()


def hear(store: DeviceStore, body: bytes, kind: str) -> None:
    session, framing = StreamSession(), framing_of(kind)
    for line in framing.feed(body):
        hear_line(session, store, line)


def test_any_lines(store: DeviceStore) -> None:
    """Whatever they are, the error is one that a device knows, and the file is whole."""

    @settings(max_examples=examples(50))
    @given(st.lists(FOREIGN, max_size=6))
    def check(lines: list[object]) -> None:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            hear(store, body, NDJSON)
        except ClientError:
            pass
        assert not store.connection.in_transaction

    check()
    assert store.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("kind", [NDJSON, BSON])
def test_any_bytes(store: DeviceStore, kind: str) -> None:
    body = JSON_BODY if kind == NDJSON else bson_body()

    @settings(max_examples=examples(50))
    @given(st.binary(max_size=50), st.integers(0, len(body)), st.integers(0, 3))
    def check(noise: bytes, at: int, lost: int) -> None:
        try:
            hear(store, body[:at] + noise + body[at + lost :], kind)
        except ClientError:
            pass

    check()
