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


def test_read_revocations_in_order(writer: SourceWriter, reader: StoreReader) -> None:
    assert reader.revocations(0) == []
    before = time.time()
    first = writer.store.revoke(RevokedKind.USER, "u/1 'é", 60.0)
    second = writer.store.revoke(RevokedKind.TOKEN, "jti", 120.0)
    assert first.seq < second.seq
    assert (first.kind, first.value) == (RevokedKind.USER, "u/1 'é")
    assert before - 5 < first.since < time.time() + 5
    assert first.until == pytest.approx(first.since + 60.0, abs=1)
    assert reader.revocations(0) == [first, second]
    assert reader.revocations(first.seq) == [second]
    assert reader.revocations(second.seq) == []


def test_newest_revocations(writer: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]) -> None:
    writer.bootstrap({"1": (A, "x")})
    reader = open_reading(writer)
    for seconds in (60.0, -1.0, 60.0):
        made = writer.store.revoke(RevokedKind.USER, "u1", seconds)
        newest = reader.newest()
        assert newest is not None
        assert newest.revoked == made.seq


def test_listener_wakes(writer: SourceWriter, reader: StoreReader) -> None:
    with closing(reader.listen()) as listener:
        writer.store.revoke(RevokedKind.STREAMS, "{}", 60.0)
        assert select.select([listener.fileno()], [], [], 10)[0]


def test_expired_revocations(writer: SourceWriter, reader: StoreReader) -> None:
    over = writer.store.revoke(RevokedKind.SESSION, "s", -1.0)
    assert reader.revocations(0) == []
    later = writer.store.revoke(RevokedKind.SESSION, "s", 60.0)
    assert later.seq > over.seq
    assert reader.revocations(0) == [later]


def test_revocation_outlives_its_writer(
    writer: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]
) -> None:
    writer.bootstrap({"1": (A, "x")})
    made = writer.store.revoke(RevokedKind.USER, "u1", 600.0)
    with closing(open_store(writer.address).open_writer()) as other:
        more = other.revoke(RevokedKind.USER, "u2", 600.0)
    assert open_reading(writer).revocations(0) == [made, more]
