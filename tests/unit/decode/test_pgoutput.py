"""Messages of the stream: what was sent is what is read, and what is damaged is refused."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode.pgoutput import Decoder, Payload
from headwater.decode.wire import DecodeError
from headwater.oplog.change import (
    UNCHANGED,
    Begin,
    Cell,
    Cells,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    ReplicaIdentity,
    Truncate,
    TypeInfo,
    Update,
)
from headwater.oplog.lsn import ZERO, Lsn
from tests.unit.decode.encoder import encode

SECRET = "geheim-ß"

TODO = Relation(
    16385,
    "public",
    "todo",
    ReplicaIdentity.DEFAULT,
    (Column("id", 23, -1, True), Column("título", 25, -1, False), Column("note", 25, -1, False)),
)
AUDIT = Relation(16390, "pg_catalog", "audit", ReplicaIdentity.FULL, (Column("line", 25, -1, True),))

ONE_OF_EACH: list[Message] = [
    Begin(Lsn(0x16_B374D848), 817_000_000_000_000, 741),
    Commit(Lsn(0x16_B374D848), Lsn(0x16_B374D900), -5),
    TODO,
    TypeInfo(16400, "public", "mood"),
    OriginMessage(Lsn(77), "elsewhere"),
    LogicalMessage(True, Lsn(78), "hw.ddl", b"\x00\xffcontent"),
    LogicalMessage(False, Lsn(79), "", b""),
    Insert(TODO, ("1", SECRET, None)),
    Update(TODO, None, False, ("1", SECRET, UNCHANGED)),
    Update(TODO, ("1", None, None), True, ("2", SECRET, UNCHANGED)),
    Update(AUDIT, (SECRET,), False, ("",)),
    Delete(TODO, ("1", None, None), True),
    Delete(AUDIT, (SECRET,), False),
    Truncate((TODO, AUDIT)),
    Truncate(()),
]


@pytest.fixture
def decoder() -> Decoder:
    """A decoder that has seen both tables."""
    decoder = Decoder()
    decoder.decode([encode(TODO), encode(AUDIT)])
    return decoder


def refusal(decoder: Decoder, payload: Payload) -> str:
    """The text of the error that a payload is refused with."""
    with pytest.raises(DecodeError) as caught:
        decoder.decode([payload])
    assert SECRET not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    return str(caught.value)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
u32 = st.integers(0, 2**32 - 1)
lsns = st.builds(Lsn, st.integers(0, 2**64 - 1))
times = st.integers(-(2**63), 2**63 - 1)


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    identity = draw(st.sampled_from(ReplicaIdentity))
    keys = st.just(True) if identity is ReplicaIdentity.FULL else st.booleans()
    columns = st.builds(Column, names, u32, st.integers(-(2**31), 2**31 - 1), keys)
    return Relation(draw(u32), draw(names), draw(names), identity, tuple(draw(st.lists(columns, max_size=8))))


def rows(relation: Relation) -> st.SearchStrategy[Cells]:
    cell: st.SearchStrategy[Cell] = st.one_of(st.none(), st.just(UNCHANGED), texts)
    return st.tuples(*[cell for _ in relation.columns])


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    """A relation, then messages that may refer to it."""
    relation = draw(relations())
    row = rows(relation)
    kinds: list[st.SearchStrategy[Message]] = [
        st.builds(Begin, lsns, times, u32),
        st.builds(Commit, lsns, lsns, times),
        st.builds(TypeInfo, u32, names, names),
        st.builds(OriginMessage, lsns, texts),
        st.builds(LogicalMessage, st.booleans(), lsns, texts, st.binary()),
        st.builds(Truncate, st.sampled_from([(), (relation,), (relation, relation)])),
        st.builds(Insert, st.just(relation), row),
        st.builds(Update, st.just(relation), st.none(), st.just(False), row),
        st.builds(Update, st.just(relation), row, st.booleans(), row),
        st.builds(Delete, st.just(relation), row, st.booleans()),
    ]
    return [relation, *draw(st.lists(st.one_of(kinds)))]


@given(messages())
def test_round_trip(sent: list[Message]) -> None:
    payloads = [encode(message) for message in sent]
    assert Decoder().decode(payloads) == Decoder().decode([memoryview(payload) for payload in payloads]) == sent


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: type(message).__name__)
def test_truncated_message(decoder: Decoder, message: Message) -> None:
    whole = encode(message)
    assert decoder.decode([whole]) == [message]
    for length in range(len(whole)):
        error = refusal(decoder, whole[:length])
        assert f"of {length}" in error
        assert refusal(decoder, memoryview(whole)[:length]) == error


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: type(message).__name__)
def test_trailing_bytes(decoder: Decoder, message: Message) -> None:
    refusal(decoder, encode(message) + b"\0")


@given(st.sampled_from("BCRYIUDTMO"), st.sampled_from([b"", b"\0\0\x40\x01", b"\0\0\x40\x01N\0\x03"]), st.binary())
def test_noise(kind: str, head: bytes, noise: bytes) -> None:
    decoder = Decoder()
    decoder.decode([encode(TODO)])
    try:
        decoded = decoder.decode([kind.encode() + head + noise])
    except DecodeError:
        return
    assert len(decoded) == 1


def test_relation_is_shared(decoder: Decoder) -> None:
    insert = encode(Insert(TODO, ("1", "a", "b")))
    wider = Relation(TODO.oid, "public", "todo", TODO.identity, (*TODO.columns, Column("done", 16, -1, False)))
    first, again, second = decoder.decode([insert, encode(TODO), insert])
    assert isinstance(first, Insert)
    assert isinstance(second, Insert)
    assert first.relation is again is second.relation
    described, wide = decoder.decode([encode(wider), encode(Insert(wider, ("1", "a", "b", "t")))])
    assert isinstance(wide, Insert)
    assert wide.relation is described is decoder.relations[TODO.oid]
    assert described == wider


def test_full_identity() -> None:
    unmarked = Relation(1, "s", "t", ReplicaIdentity.FULL, (Column("a", 25, -1, False), Column("b", 25, -1, False)))
    (relation,) = Decoder().decode([encode(unmarked)])
    assert isinstance(relation, Relation)
    assert [column.key for column in relation.columns] == [True, True]


def test_wide_row() -> None:
    columns = tuple(Column(f"c{number}", 25, -1, False) for number in range(1600))
    wide = Relation(1, "s", "wide", ReplicaIdentity.NOTHING, columns)
    row = tuple(str(number) for number in range(1600))
    assert Decoder().decode([encode(wide), encode(Insert(wide, row))])[1] == Insert(wide, row)


@pytest.mark.parametrize("payload", [b"S\0\0\0\1\1", b"b", b"\xff"])
def test_unknown_message_type(decoder: Decoder, payload: bytes) -> None:
    error = refusal(decoder, payload)
    assert "unknown type" in error
    assert repr(chr(payload[0])) in error
    assert "proto_version 1" in error


@pytest.mark.parametrize(
    "change", [Insert(TODO, ("1", SECRET, None)), Delete(TODO, ("1", None, None), True), Truncate((TODO,))]
)
def test_undescribed_table(change: Message) -> None:
    assert "no relation message described" in refusal(Decoder(), encode(change))


def test_binary_value(decoder: Decoder) -> None:
    payload = encode(Insert(TODO, ("1", SECRET, None)))
    binary = payload.replace(b"t\0\0\0\x09", b"b\0\0\0\x09")
    assert binary != payload
    error = refusal(decoder, binary)
    assert "binary value in column 2" in error
    assert "public.todo" in error
    assert re.search(r"message type 'I', byte 14 of \d+", error)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda payload: payload.replace(b"N\0\x03", b"N\0\x04"), "4 cells for 3 columns"),
        (lambda payload: payload.replace(b"N\0\x03", b"X\0\x03"), "no row where one should begin"),
        (lambda payload: payload.replace(b"t\0\0\0\x09", b"z\0\0\0\x09"), "unknown kind of value in column 2"),
    ],
)
def test_damaged_row(decoder: Decoder, damage: Callable[[bytes], bytes], complaint: str) -> None:
    payload = encode(Insert(TODO, ("1", SECRET, None)))
    assert complaint in refusal(decoder, damage(payload))


GONE = Delete(TODO, ("1", None, None), True)
NOTHING = LogicalMessage(True, ZERO, "", b"")


@pytest.mark.parametrize(
    ("sent", "read", "left_out"),
    [
        (Insert(TODO, ("1", SECRET, None)), NOTHING, ["row 1, column título"]),
        (Insert(TODO, (SECRET, "a", None)), NOTHING, [r"row geheim-\xff\xff, column id"]),
        (Update(TODO, None, False, ("1", SECRET, UNCHANGED)), GONE, ["row 1, column título"]),
        (Update(TODO, ("1", None, None), True, ("2", SECRET, None)), GONE, ["row 2, column título"]),
        (Update(TODO, ("1", None, None), True, (SECRET, "a", None)), GONE, [r"row geheim-\xff\xff, column id"]),
        (Update(TODO, (SECRET, None, None), True, ("1", "a", None)), Insert(TODO, ("1", "a", None)), []),
        (
            Update(TODO, (SECRET, None, None), True, ("1", "a", UNCHANGED)),
            Update(TODO, None, False, ("1", "a", UNCHANGED)),
            [],
        ),
        (Update(AUDIT, ("a",), False, (SECRET,)), Delete(AUDIT, ("a",), False), ["row without key, column line"]),
        (Update(AUDIT, (SECRET,), False, ("a",)), Insert(AUDIT, ("a",)), []),
        (Update(AUDIT, (SECRET,), False, (UNCHANGED,)), NOTHING, ["row without key, column line"]),
        (Delete(TODO, (SECRET, None, None), True), NOTHING, [r"row geheim-\xff\xff, column id"]),
        (Delete(AUDIT, (SECRET,), False), NOTHING, ["row without key, column line"]),
    ],
)
def test_row_that_is_not_utf8(decoder: Decoder, sent: Message, read: Message, left_out: list[str]) -> None:
    payload = encode(sent).replace("ß".encode(), b"\xff\xff")
    assert decoder.decode([memoryview(payload)]) == [read]
    decoder.left_out.clear()
    assert decoder.decode([payload, encode(GONE)]) == [read, GONE]
    named = [re.search("row [^,]*, column [^)]*", str(row).partition("(")[2]) for row in decoder.left_out]
    assert [found and found[0] for found in named] == left_out
    refusal(decoder, payload + b"x")


def test_unknown_identity(decoder: Decoder) -> None:
    assert "replica identity" in refusal(decoder, encode(TODO).replace(b"todo\0d", b"todo\0x"))


def test_decoder_goes_on(decoder: Decoder) -> None:
    good = Insert(TODO, ("1", "a", None))
    refusal(decoder, encode(good)[:-1])
    assert decoder.decode([encode(good)]) == [good]
