"""What every store promises of revocations."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import RevokedKind
from headwater.storage.open import open_store
from tests.contract.source_writer import A, SourceWriter


def test_readers_learn_of_what_is_new_in_order(world: SourceWriter, reader: StoreReader) -> None:
    assert reader.revocations(0) == []
    before = time.time()
    first = world.store.revoke(RevokedKind.USER, "u/1 'é", 60.0)
    second = world.store.revoke(RevokedKind.TOKEN, "jti", 120.0)
    assert first.seq < second.seq
    assert (first.kind, first.value) == (RevokedKind.USER, "u/1 'é")
    assert before - 5 < first.since < time.time() + 5
    assert first.until == pytest.approx(first.since + 60.0, abs=1)
    assert reader.revocations(0) == [first, second]
    assert reader.revocations(first.seq) == [second]
    assert reader.revocations(second.seq) == []


def test_whoever_looks_for_what_is_newest_learns_whether_there_are_more(
    world: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]
) -> None:
    world.bootstrap({"1": (A, "x")})
    reader = open_reading(world)
    for seconds in (60.0, -1.0, 60.0):
        made = world.store.revoke(RevokedKind.USER, "u1", seconds)
        newest = reader.newest()
        assert newest is not None
        assert newest.revoked == made.seq


def test_a_listener_wakes(world: SourceWriter, reader: StoreReader) -> None:
    with closing(reader.listen()) as listener:
        world.store.revoke(RevokedKind.STREAMS, "{}", 60.0)
        assert select.select([listener.fileno()], [], [], 10)[0]


def test_what_is_over_is_told_to_nobody_and_its_number_never_given_again(
    world: SourceWriter, reader: StoreReader
) -> None:
    over = world.store.revoke(RevokedKind.SESSION, "s", -1.0)
    assert reader.revocations(0) == []
    later = world.store.revoke(RevokedKind.SESSION, "s", 60.0)
    assert later.seq > over.seq
    assert reader.revocations(0) == [later]


def test_it_outlives_whoever_made_it(world: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]) -> None:
    world.bootstrap({"1": (A, "x")})
    made = world.store.revoke(RevokedKind.USER, "u1", 600.0)
    with closing(open_store(world.address).open_writer()) as other:
        more = other.revoke(RevokedKind.USER, "u2", 600.0)
    assert open_reading(world).revocations(0) == [made, more]
