"""A row that gets another id: what stands in buckets stays as it is, and what comes of it goes on under its subkeys."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.keys import StoreKeys
from headwater.oplog.row_id import row_subkey, subkey_origin
from headwater.oplog.transform import (
    BucketMembership,
    RowKeys,
    decode_memberships,
    encode_memberships,
    rekeyed_memberships,
    row_ops,
)
from headwater_rules.results import Put

KEYS = StoreKeys(b"s")
IDS = st.text(alphabet="ab1/.", min_size=1, max_size=3)
MEMBERS = st.lists(
    st.builds(BucketMembership, st.integers(1, 9), st.integers(0, 2**32), st.just("todos"), IDS), max_size=3
)


@given(MEMBERS, IDS, IDS, IDS)
def test_memberships_round_trip(members: list[BucketMembership], first: str, second: str, third: str) -> None:
    text = rekeyed_memberships(rekeyed_memberships(encode_memberships(members, first), first, second), second, third)
    assert decode_memberships(text, third) == members
    assert text == encode_memberships(members, third)


def test_kept_out_and_damaged() -> None:
    text = '[[5,1,"todos"],[6,0,"todos","left out",99]]'
    assert orjson.loads(rekeyed_memberships(text, "1", "2")) == [[5, 1, "todos", "1"], [6, 0, "todos", "left out", 99]]
    for damaged in ("[5", "[7]", "5"):
        assert rekeyed_memberships(damaged, "1", "2") == damaged


@given(IDS, IDS, IDS)
def test_subkeys_are_those_of_the_first_id(first: str, second: str, object_id: str) -> None:
    origin = subkey_origin(5, first)
    assert row_subkey(origin, 9, second, object_id, KEYS) == row_subkey(None, 5, first, object_id, KEYS)


def test_row_with_another_id() -> None:
    before = RowKeys(5, "a/b", KEYS)
    (put,), members = row_ops((), [Put(0, "todos[]", "todos", "1", '{"n":1}')], before)
    text = rekeyed_memberships(encode_memberships(members, "a/b"), "a/b", "1")
    after = RowKeys(9, "1", KEYS, subkey_origin(5, "a/b"))
    stood = decode_memberships(text, "1")
    assert row_ops(stood, [Put(0, "todos[]", "todos", "1", '{"n":1}')], after) == ([], stood)
    (gone,), _ = row_ops(stood, [], after)
    body = orjson.loads("{" + gone.body.removeprefix("{"))
    assert body["subkey"] == orjson.loads("{" + put.body.removeprefix("{"))["subkey"]
