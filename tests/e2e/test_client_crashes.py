"""A device in Python that is killed, or whose server is: it goes on where it was, and ends with what SQL says."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Credentials, Database
from headwater_client.cli import findings_in
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_devices import Device, DeviceFactory
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.memory_store import MemoryStore
from tests.support.sync_configs import OWN_NOTES, auto_streams
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

SCHEMA = {"notes": {"owner": "text", "body": "text", "n": "integer"}}
COUNT = "SELECT count(*) AS n, coalesce(sum(n), 0) AS total FROM notes"


def count_of(source: SourceDb) -> list[dict[str, int]]:
    ((rows, total),) = source.fetch("select count(*), coalesce(sum(n), 0)::bigint from notes")
    return [{"n": int(str(rows)), "total": int(str(total))}]


@pytest.mark.long
@pytest.mark.parametrize("kills", [2, 25])
def test_kills_of_device_and_server(
    source_db: SourceDb, deploy: Deploy, serve: Callable[..., Service], device_factory: DeviceFactory, kills: int
) -> None:
    source_db.execute("create table notes (id text primary key, owner text, body text, n int)")
    source_db.execute("insert into notes select i::text, 'a', repeat('x', 200), i from generate_series(1, 25000) i")
    service = serve(deploy(OWN_NOTES).start())
    chance = random.Random(kills)

    def opened() -> Device:
        token, upload_url = service.token("a"), service.upload_url
        return device_factory(service.endpoint, token, SCHEMA, name="phone", upload_url=upload_url, sdk="python")

    for number in range(kills):
        device = opened()
        device.execute("INSERT INTO notes (id, owner, n) VALUES (?, 'a', 1)", f"local {number}")
        device.connect()
        operations = "SELECT count(*) > ? AS more FROM ps_oplog"
        device.wait_for(operations, [{"more": 1}], chance.randrange(0, 20_000))
        device.kill()
        os.kill(service.pid, signal.SIGKILL)
        service.stop()
        source_db.execute(f"update notes set n = n + 1 where id = '{number + 1}'")
        service.start()
    device = opened()
    device.connect()
    device.wait_confirmed()
    device.wait_for(COUNT, count_of(source_db))  # type: ignore[arg-type]
    assert source_db.fetch("select count(*) from notes where id like 'local %'") == [(kills,)]
    device.close()
    with Database(device.path) as database:
        assert [each for each in findings_in(database.conn) if each.fine is False] == []


class Connector:
    """Hands out a token, and takes writes by doing nothing with them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._credentials = Credentials(str(endpoint.http.base_url), make_token())

    def fetch_credentials(self) -> Credentials:
        return self._credentials

    def upload_data(self, database: Database) -> None:
        transaction = database.get_next_crud_transaction()
        if transaction is not None:
            transaction.complete()


OWN_RULES = auto_streams(mine="SELECT * FROM todos WHERE owner = auth.user_id()")


@pytest.fixture
def endpoint(start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore) -> Endpoint:
    memory_store.replace_config(OWN_RULES)
    return start_endpoint(memory_store)


def fill(endpoint: Endpoint, *titles: str) -> None:
    for title in titles:
        endpoint.store.put(endpoint.bucket("mine", "u1"), title, json.dumps({"title": title}))
    endpoint.store.commit()


def test_damaged_bucket_is_downloaded_again(endpoint: Endpoint, tmp_path: Path) -> None:
    fill(endpoint, "a", "b")
    with Database(tmp_path / "device.db", {"todos": {"title": "text"}}) as database:
        database.connect(Connector(endpoint), ConnectOptions(retry_delay=0.05))
        database.wait_for_first_sync(60)
        with sqlite3.connect(database.path, timeout=30) as other:
            other.execute("update ps_buckets set op_checksum = op_checksum + 1")
        other.close()
        fill(endpoint, "c")
        wait_until(lambda: database["todos"].count == 3, "the repair")
        assert database.confirmed()
        assert [each for each in findings_in(database.conn) if each.fine is False] == []


@pytest.mark.parametrize("devices", [8, pytest.param(50, marks=pytest.mark.long)])
def test_many_devices_in_one_process(endpoint: Endpoint, tmp_path: Path, devices: int) -> None:
    fill(endpoint, *(str(number) for number in range(100)))
    connector = Connector(endpoint)
    databases = [Database(tmp_path / f"{number}.db", {"todos": {"title": "text"}}) for number in range(devices)]
    try:
        for database in databases:
            database.connect(connector, ConnectOptions(retry_delay=0.05))
        for database in databases:
            database.wait_for_first_sync(60)
        fill(endpoint, "late")
        wait_until(lambda: all(database["todos"].count == 101 for database in databases), "the late row everywhere")
    finally:
        for database in databases:
            database.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "headwater-client"]


def test_asyncio_app_watches(endpoint: Endpoint, tmp_path: Path) -> None:
    """Coroutines of its connector run in its own loop."""
    fill(endpoint, "first")

    class Asynchronous:
        loops: set[asyncio.AbstractEventLoop] = set()

        async def fetch_credentials(self) -> Credentials:
            self.loops.add(asyncio.get_running_loop())
            return Connector(endpoint).fetch_credentials()

        async def upload_data(self, database: Database) -> None:
            self.loops.add(asyncio.get_running_loop())
            await asyncio.to_thread(Connector(endpoint).upload_data, database)

    async def live() -> list[int]:
        connector, seen = Asynchronous(), []
        database = Database(tmp_path / "device.db", {"todos": {"title": "text"}})
        await database.connect_async(connector)
        await database.wait_for_first_sync_async(60)
        async for rows in database.watch_async("SELECT id FROM todos"):
            seen.append(len(rows))
            if len(rows) == 1:
                await asyncio.to_thread(fill, endpoint, "second")
            else:
                break
        await asyncio.to_thread(database["todos"].insert, {"id": "mine"})
        await asyncio.to_thread(wait_until, database.confirmed, "the upload")
        await database.disconnect_async()
        database.close()
        assert connector.loops == {asyncio.get_running_loop()}
        return seen

    assert asyncio.run(live()) == [1, 2]
