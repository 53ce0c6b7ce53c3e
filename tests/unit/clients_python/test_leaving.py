"""An app that leaves gets away, whatever hangs: its own upload, the look-up of a name, a statement without end."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Credentials, Database, RawTable, Schema, Statement
from headwater_client.database import app_calls
from headwater_client.database.database import CrudBatch
from headwater_client.errors import ClientError, ConnectError, NotSyncedError
from headwater_client.storage import connection as connections
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import COMPLETE, App, LittleServer, Start, checkpoint, row

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT ?, max(i) FROM n"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(app_calls, "_GRACE", 0.05)
    endless = RawTable(put=Statement(f"INSERT INTO endless {ENDLESS}", ["Id"]))
    with Database(tmp_path / "device.db", {"todos": {"title": "text"}, "endless": endless}) as opened:
        opened.execute("CREATE TABLE endless(id TEXT PRIMARY KEY, n INTEGER)")
        yield opened


@pytest.fixture
def server(start: Start) -> LittleServer:
    return start(LittleServer([{"token_expires_in": 3600}]))


def leave(database: Database) -> None:
    leaving = threading.Thread(target=database.disconnect, daemon=True)
    leaving.start()
    leaving.join(20)
    assert not leaving.is_alive(), "disconnect does not come back"


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """What hangs waits for this, which comes at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def leave_a_hanging_upload(server: LittleServer, database: Database, hanging: threading.Event) -> None:
    began = threading.Event()

    def hang(_: Database) -> None:
        began.set()
        hanging.wait(60)

    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, hang))
    assert began.wait(20)
    leave(database)


def test_next_upload_waits_for_a_hanging_one(
    server: LittleServer, database: Database, hanging: threading.Event
) -> None:
    next_began = threading.Event()
    leave_a_hanging_upload(server, database, hanging)
    database.connect(App(server.endpoint, lambda _: next_began.set()))
    wait_until(lambda: server.streams >= 1 and database.status.connected, "the next connection")
    assert not next_began.wait(0.3)
    hanging.set()
    assert next_began.wait(20)


def test_disconnect_waits_for_an_upload(
    server: LittleServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_calls, "_GRACE", 20.0)
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def upload(_: Database) -> None:
        began.set()
        goes_on.wait(20)
        ended.set()

    database["todos"].insert({"id": "mine"})
    database.connect(App(server.endpoint, upload))
    assert began.wait(20)
    threading.Timer(0.1, goes_on.set).start()
    database.disconnect()
    assert ended.is_set()


@pytest.mark.parametrize(
    ("owner", "name"), [(App, "fetch_credentials"), (socket, "getaddrinfo")], ids=["token", "look-up of a name"]
)
def test_leave_what_hangs(
    database: Database, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    asked, work = threading.Event(), getattr(owner, name)

    def hang(*given: object, **options: object) -> object:
        asked.set()
        hanging.wait(60)
        return work(*given, **options)

    monkeypatch.setattr(owner, name, hang)
    database.connect(App("http://localhost:1"))
    assert asked.wait(20)
    leave(database)


def test_leave_an_endless_statement(server: LittleServer, database: Database) -> None:
    began = threading.Event()
    server.lines = [checkpoint(), row(1, table="endless"), COMPLETE]
    database.on_status(lambda status: began.set() if status.downloading else None)
    database.connect(App(server.endpoint))
    assert began.wait(20)
    wait_until(lambda: database.rows("SELECT count(*) AS n FROM ps_oplog") == [{"n": 1}], "the row")
    leave(database)
    assert database.status.download_error is None
    assert database.rows("SELECT * FROM endless") == []


def test_leave_while_the_app_writes(server: LittleServer, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, begin = threading.Event(), connections._begin

    def begin_later(connection: sqlite3.Connection, retired: threading.Event) -> None:
        waits.set()
        begin(connection, retired)

    server.lines = [{"checkpoint": {"last_op_id": "1", "buckets": [], "streams": []}}]
    with database.atomic():
        database["todos"].insert({"id": "1", "title": "x"})
        monkeypatch.setattr(connections, "_begin", begin_later)
        database.connect(App(server.endpoint))
        assert waits.wait(60)
        leave(database)
    assert database.rows("SELECT id, title FROM todos") == [{"id": "1", "title": "x"}]
    assert database.status.upload_error is None
    database.connect(App(server.endpoint))
    database.wait_for_status(lambda status: status.connected, 60)


def test_program_ends_though_its_upload_hangs(tmp_path: Path) -> None:
    program = f"""
import threading
from headwater_client import Credentials, Database
began = threading.Event()
class Hanging:
    def fetch_credentials(self): return Credentials("http://127.0.0.1:1", "t")
    def upload_data(self, database):
        began.set()
        threading.Event().wait()
database = Database({str(tmp_path / "device.db")!r}, {{"todos": {{"title": "text"}}}})
database.connect(Hanging())
database["todos"].insert({{"id": "1"}})
assert began.wait(20)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=150)


def test_wrapped_coroutines_are_awaited(server: LittleServer, database: Database) -> None:
    """As those are that a decorator has wrapped."""
    uploaded = threading.Event()

    class Wrapped:
        def fetch_credentials(self) -> object:
            async def fetch() -> Credentials:
                return Credentials(server.endpoint, "t")

            return fetch()

        def upload_data(self, database: Database) -> object:
            async def upload() -> None:
                transaction = database.get_next_crud_transaction()
                assert transaction is not None
                transaction.complete()
                uploaded.set()

            return upload()

    database["todos"].insert({"id": "mine"})
    database.connect(Wrapped(), ConnectOptions(retry_delay=0.01))  # type: ignore[arg-type]
    assert uploaded.wait(20)
    wait_until(lambda: database.uploads_waiting == 0, "the upload")


def test_wait_for_first_sync_is_cancellable(database: Database) -> None:
    async def wait() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(database.wait_for_first_sync_async(), 0.05)
        with pytest.raises(NotSyncedError):
            await database.wait_for_first_sync_async(0.05)
        await asyncio.wait_for(database.wait_for_status_async(lambda status: not status.connected), 20)

    waiting = threading.Thread(target=lambda: asyncio.run(wait()), daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()


def test_wait_for_first_sync_async(server: LittleServer, database: Database) -> None:
    server.lines = [checkpoint(checksum=0, count=0), COMPLETE]

    async def wait() -> None:
        waiting = asyncio.ensure_future(database.wait_for_first_sync_async(20))
        await database.connect_async(App(server.endpoint))
        await waiting

    asyncio.run(wait())
    assert database.status.has_synced


def test_wait_for_first_sync_and_close(database: Database) -> None:
    heard: list[str] = []

    def wait() -> None:
        with pytest.raises(ConnectError):
            database.wait_for_first_sync()
        heard.append("thread")

    async def wait_in_loop() -> None:
        waiting = asyncio.ensure_future(database.wait_for_first_sync_async())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(database.close)
        with pytest.raises(ConnectError):
            await asyncio.wait_for(waiting, 20)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    asyncio.run(wait_in_loop())
    waiting.join(20)
    assert heard == ["thread"]


@pytest.mark.parametrize("next_writes", [Database.get_next_crud_transaction, Database.get_crud_batch])
def test_left_upload_sends_nothing_of_the_next_user(
    server: LittleServer, database: Database, hanging: threading.Event, next_writes: Callable[[Database], CrudBatch]
) -> None:
    began, ended = threading.Event(), threading.Event()
    sent: list[str] = []

    def upload(database: Database) -> None:
        try:
            while writes := next_writes(database):
                began.set()
                hanging.wait(60)
                sent.extend(entry.id for entry in writes.crud)
                writes.complete()
        finally:
            ended.set()

    database["todos"].insert({"id": "anns"})
    database.connect(App(server.endpoint, upload))
    assert began.wait(20)
    database.disconnect_and_clear()
    database["todos"].insert({"id": "bobs"})
    hanging.set()
    assert ended.wait(20)
    assert sent == ["anns"]
    assert database.uploads_waiting == 1


def test_next_upload_waits_for_a_coroutine(server: LittleServer, database: Database) -> None:
    async def use() -> None:
        began, goes_on = asyncio.Event(), asyncio.Event()
        happened: list[str] = []

        class First(App):
            async def upload_data(self, database: Database) -> None:  # type: ignore[override]
                began.set()
                await goes_on.wait()
                happened.append("first ended")

        class Second(App):
            async def upload_data(self, database: Database) -> None:  # type: ignore[override]
                happened.append("second began")
                writes = database.get_crud_batch()
                assert writes is not None
                writes.complete()

        database["todos"].insert({"id": "mine"})
        await database.connect_async(First(server.endpoint))
        await asyncio.wait_for(began.wait(), 20)
        await asyncio.wait_for(database.disconnect_async(), 20)
        await database.connect_async(Second(server.endpoint))
        await database.wait_for_status_async(lambda status: status.connected and status.uploading, 20)
        goes_on.set()
        await database.wait_for_status_async(lambda _: database.uploads_waiting == 0, 20)
        assert happened == ["first ended", "second began"]
        await database.disconnect_async()

    asyncio.run(use())


def test_left_upload_is_reported(
    server: LittleServer, database: Database, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_calls, "_LONGEST_WAIT", 0.05)
    leave_a_hanging_upload(server, database, hanging)
    database.connect(App(server.endpoint))
    database.wait_for_status(lambda status: "earlier connection" in str(status.upload_error), 20)


def test_close_while_threads_read(tmp_path: Path) -> None:
    """Their statements end with an error; a driver would end the process."""
    ended: list[str] = []

    def read(database: Database, begun: threading.Event) -> None:
        try:
            while True:
                for _ in database["todos"].rows:
                    begun.set()
        except (sqlite3.Error, ClientError) as error:
            ended.append(type(error).__name__)

    for number in range(5):
        database = Database(tmp_path / f"{number}.db", Schema.of({"todos": {"title": "text"}}))
        database["todos"].insert_all({"id": str(row), "title": "t" * 50} for row in range(2000))
        begun = threading.Event()
        readers = [threading.Thread(target=read, args=(database, begun), daemon=True) for _ in range(3)]
        for reader in readers:
            reader.start()
        assert begun.wait(60)
        database.close()
        for reader in readers:
            reader.join(60)
    assert len(ended) == 15
