"""Errors of the embedded store's cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.store import PartLostError, StoreError
from headwater.storage.sqlite.connection import open_writer
from headwater.storage.sqlite.cursor import SqliteCursor


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
