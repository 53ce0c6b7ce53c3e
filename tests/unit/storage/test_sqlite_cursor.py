"""Errors of the embedded store's cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.store import PartLostError, StoreError
from headwater.storage.open import open_store
from headwater.storage.sqlite.connection import open_writer
from headwater.storage.sqlite.cursor import SqliteCursor
from tests.contract.source_writer import SOURCE, A, SourceWriter


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SqliteCursor]:
    with closing(SqliteCursor(open_writer(tmp_path / "store.db"))) as cursor:
        cursor.script("create table kept (content)")
        yield cursor


def test_full_disk_is_no_damage_of_a_part(db: SqliteCursor, tmp_path: Path) -> None:
    path = tmp_path / "part.db"
    with closing(apsw.Connection(str(path))) as damaged:
        damaged.execute("create table rows (page)")  # and no other one
    part = StagedPart(str(path), 1, 0, 0, "0")
    with pytest.raises(PartLostError), db.dialect.open_part(db, part) as opened:
        db.rows(f"select * from {opened.lookups}")
    db.script("pragma max_page_count = 1")  # as many as there are
    with pytest.raises(StoreError, match="the disk is full"), db.dialect.open_part(db, part):
        db.execute("insert into kept values (zeroblob(1000000))")


def test_error_before_sorting(db: SqliteCursor) -> None:
    db.connection.close()
    with pytest.raises(StoreError, match="SQLite failed"), db.sorting():
        pass


@contextmanager
def little_memory() -> Iterator[None]:
    """Meanwhile, SQLite can't have much more than it has."""
    apsw.hard_heap_limit(apsw.memory_used() + 200_000)
    try:
        yield
    finally:
        apsw.hard_heap_limit(0)
        apsw.soft_heap_limit(0)  # which the other one has lowered


def test_error_that_ends_a_snapshot(db: SqliteCursor) -> None:
    """SQLite rolls back by itself when there is no memory, or a disk fails."""
    db.execute("insert into kept values (zeroblob(4000000))")
    with pytest.raises(StoreError, match="not enough memory"), db.snapshot(), little_memory():
        db.rows("select content from kept")
    with db.snapshot():
        assert len(db.rows("select content from kept")[0][0]) == 4_000_000


def test_error_that_ends_the_reading_of_rows(tmp_path: Path) -> None:
    address = SqliteAddress(str(tmp_path))
    with closing(open_store(address).open_writer()) as store:
        writer = SourceWriter(address, store, store.acquire(SOURCE, "here:1", 60.0))
        writer.bootstrap({"1": (A, "x" * 4_000_000)})
        with writer.rolled_back() as flush:
            with pytest.raises(StoreError, match="not enough memory"), little_memory():
                flush.current(writer.table, ["1"])
            assert flush.current(writer.table, ["1"])
