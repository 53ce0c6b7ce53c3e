"""Which request bodies are understood, and what is said about the others."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.op import OpId
from headwater.sync.request import (
    BodyLimits,
    InvalidRequestError,
    StreamRequest,
    parse_client_id,
    parse_stream_request,
    write_key,
)
from headwater_rules.results import StreamSubscription


def test_request_of_a_stock_client() -> None:
    body = (
        b'{"buckets":[{"name":"3#mine|0[\\"u1\\"]","after":"812"}],"include_checksum":true,"raw_data":true,'
        b'"binary_data":true,"client_id":"c-77","parameters":{"a":1},"app_metadata":{"version":"2"},'
        b'"streams":{"include_defaults":false,"subscriptions":['
        b'{"stream":"todos","parameters":{"list":"l1"},"override_priority":1},'
        b'{"stream":"todos","parameters":null,"override_priority":null}]},"something_new":[]}'
    )
    assert parse_stream_request(body) == StreamRequest(
        positions={'3#mine|0["u1"]': OpId(812)},
        raw_data=True,
        parameters={"a": 1},
        client_id="c-77",
        app_metadata={"version": "2"},
        include_defaults=False,
        subscriptions=(StreamSubscription("todos", {"list": "l1"}, 1), StreamSubscription("todos")),
    )


@pytest.mark.parametrize("body", [b"{}", b'{"parameters":null}', b'{"buckets":null,"client_id":null}'])
def test_empty_request(body: bytes) -> None:
    assert parse_stream_request(body) == StreamRequest()


@pytest.mark.parametrize(("value", "raw"), [("true", True), ("false", False), ("null", False)])
def test_raw_data(value: str, raw: bool) -> None:
    assert parse_stream_request(f'{{"raw_data":{value}}}'.encode()).raw_data is raw


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ("", ""),
        ("{", ""),
        ('{"raw_data":1}', "raw_data"),
        ('{"raw_data":"true"}', "raw_data"),
        ('{"include_checksum":[]}', "include_checksum"),
        ('{"binary_data":"yes"}', "binary_data"),
        ('{"only":"todos"}', "only"),
        ('{"only":["todos",1]}', "only[1]"),
        ("[]", "body"),
        ("null", "body"),
        ('"text"', "body"),
        ("[" * 100_000, ""),
        ('{"parameters":' + '{"a":' * 200 + "1" + "}" * 201, "parameters"),
        ('{"parameters":[]}', "parameters"),
        ('{"client_id":"a\\u0000b"}', "client_id"),
        ('{"client_id":7}', "client_id"),
        ('{"client_id":"\\ud800"}', ""),
        ('{"buckets":{}}', "buckets"),
        ('{"buckets":[1]}', "buckets[0]"),
        ('{"buckets":[{"after":"1"}]}', "buckets[0].name"),
        ('{"buckets":[{"name":"a"}]}', "buckets[0].after"),
        ('{"buckets":[{"name":"a","after":1}]}', "buckets[0].after"),
        ('{"buckets":[{"name":"a","after":"x"}]}', "buckets[0].after"),
        ('{"buckets":[{"name":"a","after":"-1"}]}', "buckets[0].after"),
        ('{"buckets":[{"name":"a","after":"9223372036854775808"}]}', "buckets[0].after"),
        ('{"buckets":[{"name":"a","after":"\u0663"}]}', "buckets[0].after"),
        ('{"app_metadata":{"a":1}}', "app_metadata.a"),
        ('{"streams":[]}', "streams"),
        ('{"streams":{"include_defaults":1}}', "streams.include_defaults"),
        ('{"streams":{"subscriptions":{}}}', "streams.subscriptions"),
        ('{"streams":{"subscriptions":[{"stream":"a","parameters":null}]}}', "streams.subscriptions[0]"),
        *(
            (f'{{"streams":{{"subscriptions":[{{"stream":"a",{fields}}}]}}}}', f"streams.subscriptions[0].{name}")
            for fields, name in (
                ('"parameters":null,"override_priority":4', "override_priority"),
                ('"parameters":1,"override_priority":null', "parameters"),
            )
        ),
    ],
)
def test_invalid_body(body: str, where: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        parse_stream_request(body.encode())
    assert refusal.value.where == where
    assert refusal.value.fix


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
fields = st.sampled_from(["buckets", "parameters", "client_id", "streams", "app_metadata", "raw_data"])


@given(st.dictionaries(fields, json_values))
def test_any_json(request_fields: dict[str, object]) -> None:
    try:
        parse_stream_request(json.dumps(request_fields).encode())
    except InvalidRequestError:
        pass


def test_write_key_of_a_client() -> None:
    assert write_key("u1", parse_client_id("c1")) == "u1/c1"
    assert write_key("u1", parse_client_id(None)) == "u1"


@pytest.mark.parametrize(
    ("user_id", "client_id", "key"),
    [
        ("a2/b", "c", "a2%2Fb/c"),
        ("a2/b", None, "a2%2Fb"),
        ("a2%2Fb", "c", "a2%252Fb/c"),
        ("a2", "b/c", "a2/b/c"),
        ("a2", "%2F", "a2/%2F"),
        ("a2", "", "a2/"),
    ],
)
def test_write_key_escapes_the_user(user_id: str, client_id: str | None, key: str) -> None:
    assert write_key(user_id, client_id) == key


_ids = st.text("/%2Fab", max_size=6)


@given(_ids, _ids, _ids)
def test_write_keys_differ(a: str, b: str, c: str) -> None:
    clients = {(a, f"{b}/{c}"), (f"{a}/{b}", c), (f"{a}/{b}/{c}", None), (f"{a}%2F{b}", c), (a, f"{b}%2F{c}"), (a, b)}
    assert len({write_key(*client) for client in clients}) == len(clients)


def test_body_limits() -> None:
    def body(subscriptions: int, buckets: int) -> bytes:
        subscription = {"stream": "s", "parameters": None, "override_priority": None}
        known = [{"name": f"b{number}", "after": "0"} for number in range(buckets)]
        return json.dumps({"buckets": known, "streams": {"subscriptions": [subscription] * subscriptions}}).encode()

    limits = BodyLimits(subscriptions=3, known_buckets=5)
    assert len(parse_stream_request(body(3, 5), limits).positions) == 5
    with pytest.raises(InvalidRequestError, match=r"subscriptions has 4 .*max_subscriptions_per_connection"):
        parse_stream_request(body(4, 5), limits)
    with pytest.raises(InvalidRequestError, match=r"buckets has 6 .*max_known_buckets_per_connection"):
        parse_stream_request(body(3, 6), limits)
    assert len(parse_stream_request(body(1000, 10_000)).subscriptions) == 1000


def test_client_id_length() -> None:
    assert parse_client_id("é" * 512) == "é" * 512
    with pytest.raises(InvalidRequestError, match="longer than 1024 bytes"):
        parse_client_id("é" * 513)


def test_metadata_is_cut() -> None:
    metadata = {f"{number:02}" + "k" * 400: "v" * 400 for number in range(30)}
    kept = parse_stream_request(json.dumps({"app_metadata": metadata}).encode()).app_metadata
    assert list(kept) == [f"{number:02}" + "k" * 298 for number in range(20)]
    assert set(kept.values()) == {"v" * 300}
    with pytest.raises(InvalidRequestError):
        parse_stream_request(json.dumps({"app_metadata": {**metadata, "last": 1}}).encode())


@pytest.mark.parametrize("part", [b"[],", b"{},", b"[" * 90 + b"]" * 90 + b",", b'[{"a\\"":[]}],'])
def test_too_many_arrays_and_objects(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    body = b'{"parameters":{"a":[' + part * (1_000_000 // len(part)) + b"1]}}"
    monkeypatch.setattr(orjson, "loads", None)
    with pytest.raises(InvalidRequestError, match="arrays and objects"):
        parse_stream_request(body)


def test_brackets_in_bucket_names() -> None:
    name = '1#a["\\' + "[{" * 5 + '"]'
    buckets = [{"name": f"{name}{number}", "after": "1"} for number in range(12_000)]
    asked = parse_stream_request(json.dumps({"buckets": buckets}).encode())
    assert list(asked.positions) == [each["name"] for each in buckets]


WORST = [b"[],", b"1,", b'"",', b"{},", b"[" * 90 + b"]" * 90 + b",", b"1e308,"]


@pytest.mark.parametrize("field", [b"parameters", b"app_metadata", b"only", b"buckets", b"streams", b"client_id"])
def test_cost_of_any_body(field: bytes) -> None:
    usual = {"buckets": [{"name": f'1#todos["{number:032}"]', "after": str(number)} for number in range(12_000)]}
    most = 6 * _seconds(json.dumps(usual).encode())
    for part in WORST:
        content = part * (900_000 // len(part))
        assert _seconds(b'{"%b":{"a":[%b1]}}' % (field, content)) < most, part
        assert _seconds(b'{"%b":[%b1]}' % (field, content)) < most, part


def _seconds(body: bytes) -> float:
    """The least of several times, of this thread alone."""
    found = []
    for _ in range(3):
        began = time.thread_time()
        with suppress(InvalidRequestError):
            parse_stream_request(body)
        found.append(time.thread_time() - began)
    return min(found)


def test_values_of_parameters_are_limited() -> None:
    def body(own: int, subscribed: int) -> bytes:
        one: dict[str, object] = {"stream": "s", "parameters": {"a": [{}]}, "override_priority": None}
        streams = {"subscriptions": [one] * subscribed}
        return json.dumps({"parameters": {"a": [[]] * own}, "streams": streams}).encode()

    assert len(parse_stream_request(body(9_999, 0)).parameters or {}) == 1
    parse_stream_request(body(9_999 - 2 * 900, 900))
    for own, subscribed in ((10_000, 0), (9_999, 1)):
        with pytest.raises(InvalidRequestError, match="more than 10,000 values"):
            parse_stream_request(body(own, subscribed))
