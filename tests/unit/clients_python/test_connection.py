"""What an app may do while a device is connected: sign out, connect again, subscribe, and fail to start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Credentials, Database
from headwater_client.errors import ConnectError, RetiredError, SyncedElsewhereError
from headwater_client.protocol.lines import Data, Op
from headwater_client.storage import layout, uploads
from headwater_client.storage.connection import open_connection
from headwater_client.storage.store import DeviceStore
from headwater_client.sync.options import Tokens
from headwater_client.sync.status import SyncStatus
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import App, LittleServer, Start, checkpoint, row, upload_all


@pytest.fixture
def server(start: Start) -> LittleServer:
    return start(LittleServer([checkpoint(), row(1)]))


@pytest.fixture
def database(tmp_path: Path, start: Start) -> Iterator[Database]:  # whose end comes first
    with Database(tmp_path / "device.db", {"todos": {"title": "text"}}) as opened:
        yield opened


def syncing() -> bool:
    return any(thread.name == "headwater-client" for thread in threading.enumerate())


def test_sign_out_within_an_upload(server: LittleServer, database: Database) -> None:
    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, lambda each: each.disconnect_and_clear()))
    wait_until(lambda: not syncing(), "the sync thread")
    assert database.rows("SELECT * FROM ps_oplog") == []
    assert database.rows("SELECT * FROM ps_buckets") == []
    assert database.uploads_waiting == 0


def test_connect_waits_for_the_last_thread(server: LittleServer, database: Database) -> None:
    left, next_began = threading.Event(), threading.Event()
    overlapped: list[bool] = []

    def leave(each: Database) -> None:
        each.disconnect()
        left.set()
        overlapped.append(next_began.wait(0.5))

    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, leave))
    assert left.wait(60)
    database.connect(App(server.endpoint, lambda _: next_began.set()))
    assert next_began.wait(60)
    assert overlapped == [False]


def test_disconnect_within_an_upload(server: LittleServer, database: Database) -> None:
    class Leaving(App):
        async def upload_data(self, database: Database) -> None:  # type: ignore[override]
            await database.disconnect_async()

    database["todos"].insert({"id": "mine"})
    database.connect(Leaving(server.endpoint))
    wait_until(lambda: not syncing(), "the end of the sync thread")


def test_subscribe_within_an_upload(server: LittleServer, database: Database) -> None:
    uploading = threading.Event()

    def subscribe_often(each: Database) -> None:
        uploading.set()
        for _ in range(200):
            each.subscribe("one").unsubscribe()

    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, subscribe_often))
    assert uploading.wait(60)
    again = threading.Thread(target=database.connect, args=(App(server.endpoint),), daemon=True)
    again.start()
    again.join(60)
    assert not again.is_alive()


def test_failed_start_leaves_the_database_usable(tmp_path: Path) -> None:
    database = Database(tmp_path / "device.db", {"todos": {"title": "text"}}, user_agent="no header: \u2603")
    heard = threading.Event()

    def hear(status: SyncStatus) -> None:
        if status.download_error is not None:
            database.subscribe("one").unsubscribe()
            heard.set()

    database.on_status(hear)
    connecting = threading.Thread(target=database.connect, args=(App("http://127.0.0.1"),), daemon=True)
    connecting.start()
    assert heard.wait(60)
    connecting.join(60)
    database.close()


def test_tokens_are_fetched_once() -> None:
    async def ask() -> None:
        asked, answer = 0, asyncio.Event()

        async def fetch() -> Credentials:
            nonlocal asked
            asked += 1
            await answer.wait()
            return Credentials("http://server", str(asked))

        tokens = Tokens(fetch)
        leaving = asyncio.ensure_future(tokens.get())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        staying = [asyncio.ensure_future(tokens.get()) for _ in range(2)]
        await asyncio.sleep(0)
        answer.set()
        first, same = await asyncio.gather(*staying)
        assert first == same == await tokens.get() == Credentials("http://server", "1")
        tokens.invalidate(first)
        second = await tokens.get()
        tokens.invalidate(first)
        assert await tokens.get() == second == Credentials("http://server", "2")

    asyncio.run(ask())


def target(database: Database) -> int:
    (row,) = database.rows("SELECT value FROM ps_kv WHERE key = ?", [layout.TARGET])
    return int(row["value"])


def test_target_beyond_what_the_server_knows(server: LittleServer, database: Database) -> None:
    asked: list[int] = []
    uploaded = threading.Event()

    def numbered(number: int) -> int:
        asked.append(number)
        if len(asked) == 1:
            uploaded.wait(60)  # what opens the stream asks, too, and is slower than the upload
        return max(7, *asked)

    server.numbered = numbered
    database.connect(App(server.endpoint, upload_all), ConnectOptions(checkpoint_mode="requests"))
    wait_until(lambda: bool(asked), "the stream's request")
    database["todos"].insert({"id": "mine"})
    wait_until(lambda: target(database) < layout.NO_TARGET, "a target")
    assert target(database) == 8
    uploaded.set()
    database.disconnect_and_clear()
    asked.clear()
    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, upload_all), ConnectOptions(checkpoint_mode="requests"))
    wait_until(lambda: target(database) < layout.NO_TARGET, "a target")
    assert asked == [8, 9]


def test_target_after_a_clear(database: Database) -> None:
    database["todos"].insert({"id": "mine"})
    upload_all(database)
    sequence = uploads.unconfirmed_sequence(database.conn)
    assert sequence is not None
    database.disconnect_and_clear()
    assert not uploads.set_target(database.conn, 5, sequence)
    assert database.confirmed()


def test_upload_that_ends_after_a_clear(database: Database) -> None:
    database["todos"].insert({"id": "mine"})
    transaction = database.get_next_crud_transaction()
    assert transaction is not None
    database.disconnect_and_clear()
    transaction.complete()
    assert database.confirmed()


def test_write_between_two_looks_at_the_queue(tmp_path: Path, database: Database) -> None:
    database["todos"].insert({"id": "first"})
    upload_all(database)
    looking = open_connection(tmp_path / "device.db")

    def write_in_between(statement: str) -> None:
        if "sqlite_sequence" in statement:
            database["todos"].upsert({"id": "second"})

    looking.set_trace_callback(write_in_between)
    assert uploads.unconfirmed_sequence(looking) is None
    looking.close()


def test_retired_store(tmp_path: Path) -> None:
    connection = open_connection(tmp_path / "device.db")
    layout.prepare(connection)
    store = DeviceStore(connection, {})
    store.retired.set()
    with pytest.raises(RetiredError):
        store.save([Data("b", [Op("1", "PUT", 1, "todos", "1", "s", "{}")])])
    assert store.positions() == {}
    connection.close()


def test_token_refused_beside_the_stream(database: Database, start: Start) -> None:
    class Refusing(LittleServer):
        def line_up(self, handler: BaseHTTPRequestHandler) -> None:
            self.refused.add("1")
            super().line_up(handler)

    asked: list[int] = []

    def numbered(number: int) -> int:
        asked.append(number)
        return number

    refusing = Refusing([checkpoint(), row(1)], numbered)
    refusing.again = {"token_expires_in": 3600}  # a device asks again when it hears of the server
    server = start(refusing)
    connector = App(server.endpoint)
    database.connect(connector, ConnectOptions(checkpoint_mode="requests"))
    wait_until(lambda: len(asked) >= 2, "the second request")
    assert (connector.fetched, server.streams) == (2, 1)
    assert database.status.connected


def test_second_sync_of_a_file_waits(server: LittleServer, database: Database, tmp_path: Path) -> None:
    database.connect(App(server.endpoint))
    wait_until(lambda: server.streams == 1, "the first stream")
    with Database(tmp_path / "device.db") as second:
        second.connect(App(server.endpoint))
        second.wait_for_status(lambda status: isinstance(status.download_error, SyncedElsewhereError), 20)
        second["todos"].insert({"id": "of the second"})
        assert (server.streams, database["todos"].count) == (1, 1)
        database.disconnect()
        second.wait_for_status(lambda status: status.connected, 20)
        assert (server.streams, second.status.download_error) == (2, None)
        database.connect(App(server.endpoint))
        database.wait_for_status(lambda status: isinstance(status.download_error, SyncedElsewhereError), 20)
        database.disconnect()  # who waits can leave


def test_unsubscribe_twice(server: LittleServer, database: Database) -> None:
    first, second = database.subscribe("one", ttl=0), database.subscribe("one", ttl=0)
    with first:
        first.unsubscribe()

    def asked_for() -> list[str]:
        before = server.streams
        database.connect(App(server.endpoint))
        wait_until(lambda: server.streams > before, "a stream")
        database.disconnect()
        return [each.key.name for each in database.status.streams]

    assert asked_for() == ["one"]
    second.unsubscribe()
    assert asked_for() == []


@pytest.mark.parametrize("value", [float("nan"), "\ud83d", object()], ids=["nan", "half a pair", "an object"])
def test_parameters_without_a_json_form(database: Database, value: object) -> None:
    with pytest.raises(ConnectError, match="JSON"):
        database.subscribe("one", {"a": value})
    with pytest.raises(ConnectError, match="JSON"):
        database.connect(App("http://127.0.0.1:1"), ConnectOptions(parameters={"a": value}))
