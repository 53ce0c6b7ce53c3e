"""What an app may do while a device is connected: sign out, connect again, subscribe, and fail to start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater_client import Credentials, Database, Schema
from headwater_client.errors import Retired
from headwater_client.protocol.lines import Data, Op
from headwater_client.storage import layout
from headwater_client.storage.connection import open_connection
from headwater_client.storage.store import Store
from tests.support.fix_headwater import wait_until
from tests.unit.clients_python.little_server import Line, LittleServer, serving

BEGUN: list[Line] = [
    {
        "checkpoint": {
            "last_op_id": "1", "streams": [], "buckets": [{"bucket": "b", "checksum": 1, "count": 1, "priority": 3}],
        }
    },
    {
        "data": {
            "bucket": "b",
            "data": [
                {
                    "op_id": "1", "op": "PUT", "object_type": "todos", "object_id": "theirs", "subkey": "s",
                    "checksum": 1, "data": "{}",
                }
            ],
        }
    },
]  # fmt: skip


class App:
    """A connector whose upload does `work`."""

    def __init__(self, endpoint: str, work: Callable[[Database], object] = lambda _: None) -> None:
        self.endpoint, self.work = endpoint, work

    def fetch_credentials(self) -> Credentials:
        return Credentials(self.endpoint, "t")

    def upload_data(self, database: Database) -> None:
        self.work(database)


@pytest.fixture
def server() -> Iterator[LittleServer]:
    with serving(LittleServer(BEGUN)) as running:
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "device.db", Schema.of({"todos": {"title": "text"}}))
    yield opened
    opened.close()


def syncing() -> bool:
    return any(thread.name == "headwater-client" for thread in threading.enumerate())


def test_nothing_of_who_signs_out_within_an_upload_stays(server: LittleServer, database: Database) -> None:
    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, lambda each: each.disconnect_and_clear()))
    wait_until(lambda: not syncing(), "the sync thread")
    assert database.rows("SELECT * FROM ps_oplog") == []
    assert database.rows("SELECT * FROM ps_buckets") == []
    assert database.uploads_waiting == 0


def test_a_connect_waits_for_the_thread_that_was_told_to_end(server: LittleServer, database: Database) -> None:
    left, next_began = threading.Event(), threading.Event()
    overlapped: list[bool] = []

    def leave(each: Database) -> None:
        each.disconnect()
        left.set()
        overlapped.append(next_began.wait(0.5))

    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, leave))
    assert left.wait(20)
    database.connect(App(server.endpoint, lambda _: next_began.set()))
    assert next_began.wait(20)
    assert overlapped == [False]


def test_a_store_that_is_retired_takes_nothing(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "device.db")
    layout.prepare(connection)
    store = Store(connection, {})
    store.retired.set()
    with pytest.raises(Retired):
        store.save([Data("b", [Op("1", "PUT", 1, "todos", "1", "s", "{}")])])
    assert store.positions() == []
    connection.close()
