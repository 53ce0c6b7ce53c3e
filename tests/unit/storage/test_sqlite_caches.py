"""What the page caches of the writers of a process take together."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import apsw
import pytest

from headwater.storage.sql.writer import StoreWriter
from headwater.storage.sqlite import connection
from headwater.storage.sqlite.writer import SqliteWriter

MB = 1 << 20


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A store of 24 MB."""
    with closing(SqliteWriter(tmp_path)) as writer, writer._work() as db, db.transaction():
        db.script("create table kept (content)")
        db.execute_many("insert into kept values (zeroblob(?))", [(1000,)] * 24_000)
    return tmp_path


def read(writer: StoreWriter) -> None:
    with writer._work() as db:
        db.rows("select sum(length(hex(content))) from kept")


def test_writers_of_many_sources_share_the_memory(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CACHES_KIB", 16 << 10)
    monkeypatch.setattr(connection, "_LEAST_KIB", 1 << 10)
    before = apsw.memory_used()
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(SqliteWriter(kept))) for _ in range(8)]
        writers[0].acquire("0", "test", 10)
        read(writers[0])
        assert apsw.memory_used() - before > 14 * MB, "one source has all"
        for number, writer in enumerate(writers):
            writer.acquire(str(number), "test", 10)
        for writer in writers:
            read(writer)
        assert apsw.memory_used() - before < 22 * MB


def test_source_that_is_left_has_all_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CACHES_KIB", 16 << 10)
    with closing(SqliteWriter(kept)) as one:
        with closing(SqliteWriter(kept)) as other:
            one.acquire("one", "test", 10)
            lease = other.acquire("other", "test", 10)
            assert cache_of(one) == 8 << 10
            other.release(lease)
            assert cache_of(one) == 16 << 10
            other.acquire("other", "test", 10)
        assert cache_of(one) == 16 << 10


def test_sorting_leaves_the_share(kept: Path) -> None:
    with closing(SqliteWriter(kept)) as one, closing(SqliteWriter(kept)) as other:
        one.acquire("one", "test", 10)
        other.acquire("other", "test", 10)
        with one._work() as db, db.sorting():
            pass
        assert cache_of(one) == 64 << 10


def cache_of(writer: StoreWriter) -> int:
    with writer._work() as db:
        ((size,),) = db.rows("pragma cache_size")
        return -int(size)
