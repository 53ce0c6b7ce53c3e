"""Who is told of a change, and who is left alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Touched, WriteCheckpoint
from headwater.sync.interest import AwaitedWrites, Interest, Interests, News, anything

AT = OpId(7)


def test_unknown_changes_concern_everyone() -> None:
    interests: Interests[str] = Interests()
    interests.put("ann", Interest(frozenset("a"), frozenset()))
    interests.put("bob", Interest(frozenset(), frozenset()))
    expected = {"ann": anything(AT), "bob": anything(AT)}
    assert interests.concerned(Touched(None, frozenset()), AT) == expected
    assert interests.concerned(Touched(frozenset(), None), AT) == expected


names = st.frozensets(st.sampled_from("abcd"), max_size=3)
held = st.builds(Interest, names, names)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.none() | held)), names, names)
def test_concerned(
    history: list[tuple[str, Interest | None]], buckets: frozenset[str], lookups: frozenset[str]
) -> None:
    interests: Interests[str] = Interests()
    last: dict[str, Interest] = {}
    for who, what in history:
        if what is None:
            interests.remove(who)
            last.pop(who, None)
        else:
            interests.put(who, what)
            last[who] = what
    expected = {
        who: News(AT, what.buckets & buckets, bool(what.lookups & lookups))
        for who, what in last.items()
        if what.buckets & buckets or what.lookups & lookups
    }
    assert interests.concerned(Touched(buckets, lookups), AT) == expected
    assert len(interests.everyone()) == len(last)


def test_news_add_up() -> None:
    early = News(OpId(1), frozenset("a"), lookups=True)
    late = News(OpId(2), frozenset("b"), write_checkpoint=4)
    assert early.also(late) == News(OpId(2), frozenset("ab"), lookups=True, write_checkpoint=4)
    assert late.also(anything(OpId(1))) == News(OpId(2), None, lookups=True, write_checkpoint=4)


def write(key: str, number: int, **lsns: int) -> WriteCheckpoint:
    return WriteCheckpoint(key, number, {tag: Lsn(lsn) for tag, lsn in lsns.items()}, number)


def test_write_is_released_once_every_source_reached_it() -> None:
    writes: AwaitedWrites[str] = AwaitedWrites()
    writes.join("u/1", "phone")
    writes.join("u/1", "second tab")
    writes.join("v/1", "tablet")
    writes.expect([write("u/1", 3, one=10, two=20)])
    assert writes.release({"one": Lsn(10)}) == {}
    assert writes.release({"one": Lsn(11), "two": Lsn(19)}) == {}
    assert writes.release({"one": Lsn(11), "two": Lsn(20)}) == {"phone": 3, "second tab": 3}
    assert writes.release({"one": Lsn(11), "two": Lsn(20)}) == {}


def test_newest_write_is_awaited() -> None:
    writes: AwaitedWrites[str] = AwaitedWrites()
    writes.join("u", "phone")
    writes.expect([write("u", 2, one=20)])
    writes.expect([write("u", 1, one=10)])
    assert writes.release({"one": Lsn(15)}) == {}
    assert writes.release({"one": Lsn(20)}) == {"phone": 2}


def test_rewound_write_is_awaited_at_its_new_position() -> None:
    before = write("u", 2, one=90)
    rewound = replace(before, lsns={"one": Lsn(40)}, seq=3)
    writes: AwaitedWrites[str] = AwaitedWrites()
    writes.join("u", "phone")
    writes.expect([before])
    writes.expect([rewound])
    writes.expect([before])  # by a stream that read it earlier
    assert writes.release({"one": Lsn(40)}) == {"phone": 2}


def test_leave() -> None:
    writes: AwaitedWrites[str] = AwaitedWrites()
    writes.join("u", "phone")
    writes.expect([write("u", 1, one=10), write("stranger", 1, one=10)])
    writes.leave("u", "phone")
    writes.join("u", "phone")
    writes.join("stranger", "late")
    assert writes.release({"one": Lsn(99)}) == {}
