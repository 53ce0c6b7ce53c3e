"""A disk that is full, which a limit on the size of files plays: at opening, before a download, and within one."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Credentials, Database
from headwater_client.errors import FileError
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import LittleServer, serving
from tests.unit.clients_python.pauses import noted_pauses

SCHEMA = {"todos": {"title": "text"}}


class App:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def fetch_credentials(self) -> Credentials:
        return Credentials(self.endpoint, "t")

    def upload_data(self, database: Database) -> None:
        pass


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
def test_a_file_that_has_no_room_is_told_and_can_be_made_later(tmp_path: Path, room: int) -> None:
    with full(room), pytest.raises(FileError):
        Database(tmp_path / "device.db", SCHEMA)
    with Database(tmp_path / "device.db", SCHEMA) as database:
        database["todos"].insert({"id": "1", "title": "milk"})
        assert database.rows("SELECT title FROM todos") == [{"title": "milk"}]


def test_a_device_that_cannot_start_tries_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failures = Database._open_store, [sqlite3.OperationalError("database or disk is full")] * 3

    def open_store(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "_open_store", open_store)
    with serving(LittleServer([])) as server, Database(tmp_path / "device.db", SCHEMA) as database:
        database.connect(App(server.endpoint), ConnectOptions(retry_delay=0.01))
        database.wait_for_status(lambda status: status.connected, 20)


def test_a_download_without_room_is_begun_less_and_less_and_ends_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = noted_pauses(monkeypatch)
    put = {"op": "PUT", "object_type": "todos", "subkey": "s", "checksum": 1, "data": '{"title": "%s"}' % ("x" * 5000)}
    ops = [{**put, "op_id": str(number), "object_id": str(number)} for number in range(1, 201)]
    bucket = {"bucket": "b", "checksum": len(ops), "count": len(ops), "priority": 3}
    lines = [
        {"checkpoint": {"last_op_id": "200", "streams": [], "buckets": [bucket]}},
        {"data": {"bucket": "b", "data": ops}},
        {"checkpoint_complete": {"last_op_id": "200"}},
    ]
    with serving(LittleServer(lines)) as server, Database(tmp_path / "device.db", SCHEMA) as database:  # type: ignore[arg-type]
        with full(500_000):
            database.connect(App(server.endpoint), ConnectOptions(retry_delay=0.01))
            wait_until(lambda: len(waits) > 4, "five waits")
            assert isinstance(database.status.download_error, sqlite3.OperationalError)
        assert waits[4] > 8 * waits[0]
        database.wait_for_first_sync(20)
        assert database["todos"].count == 200
