"""A disk that is full, which a limit on the size of files plays: at opening, before a download, and within one."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Database
from headwater_client.errors import FileError
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import COMPLETE, App, LittleServer, Start, checkpoint, noted_pauses, row

SCHEMA = {"todos": {"title": "text"}}


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file of this process may become larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 4096, 40_000])
def test_open_without_room(tmp_path: Path, room: int) -> None:
    with full(room), pytest.raises(FileError):
        Database(tmp_path / "device.db", SCHEMA)
    with Database(tmp_path / "device.db", SCHEMA) as database:
        database["todos"].insert({"id": "1", "title": "milk"})
        assert database.rows("SELECT title FROM todos") == [{"title": "milk"}]


def test_start_is_retried(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failures = Database._open_store, [sqlite3.OperationalError("database or disk is full")] * 3

    def open_store(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "_open_store", open_store)
    with Database(tmp_path / "device.db", SCHEMA) as database:
        database.connect(App(start(LittleServer([])).endpoint), ConnectOptions(retry_delay=0.01))
        database.wait_for_status(lambda status: status.connected, 20)


def test_download_without_room(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = noted_pauses(monkeypatch)
    rows = [row(number, '{"title": "%s"}' % ("x" * 5000), row_id=str(number)) for number in range(1, 201)]
    lines = [checkpoint(checksum=200, count=200), *rows, COMPLETE]
    with Database(tmp_path / "device.db", SCHEMA) as database:
        with full(500_000):
            database.connect(App(start(LittleServer(lines)).endpoint), ConnectOptions(retry_delay=0.01))
            wait_until(lambda: len(waits) > 4, "five waits")
            assert isinstance(database.status.download_error, sqlite3.OperationalError)
        assert waits[4] > 8 * waits[0]
        database.wait_for_first_sync(20)
        assert database["todos"].count == 200
