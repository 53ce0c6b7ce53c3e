"""The write-ahead file of the embedded store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from headwater.storage.sqlite.writer import SqliteWriter
from tests.contract.source_writer import SOURCE, SourceWriter

MB = 1 << 20


def test_write_ahead_file_shrinks(tmp_path: Path) -> None:
    with closing(SqliteWriter(tmp_path)) as store:
        writer = SourceWriter(store.address, store, store.acquire(SOURCE, "test:1", 60.0))
        writer.bootstrap({})
        file = tmp_path / "store.db-wal"
        writer.write({str(number): ("todos.1[]", "x" * (5 * MB)) for number in range(10)})
        assert file.stat().st_size > 90 * MB
        for number in range(3):
            writer.write({str(number): ("todos.1[]", "small")})
        assert file.stat().st_size <= 32 * MB
