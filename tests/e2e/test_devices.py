"""From a commit in Postgres to the SQLite of the stock Node SDK, and back up through its upload queue."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from tests.integration.type_cases import CASES, CUSTOM_TYPES
from tests.support.fix_devices import WAYS, CheckpointMode, Device, DeviceFactory, Sdk, Transport
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb, skip_without
from tests.support.fix_service import Service
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

Serve = Callable[[Deployment], Service]
Open = Callable[..., Sequence[Device]]

RULES = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
  todos:
    auto_subscribe: true
    priority: 1
    query: SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())
  rows:
    auto_subscribe: true
    query: SELECT owner, body FROM copies WHERE owner = auth.user_id()
"""

TYPES = auto_streams(types="SELECT * FROM types WHERE owner = auth.user_id()")

SCHEMA = {
    "notes": {"owner": "text", "body": "text", "n": "integer"},
    "todos": {"list_id": "text", "title": "text"},
    "copies": {"owner": "text", "body": "text"},
}

NOTES = "SELECT id, owner, body, n FROM notes ORDER BY id"


@pytest.fixture
def tables(source_db: SourceDb) -> SourceDb:
    source_db.execute(
        "create table notes (id text primary key, owner text, body text, n int);"
        "create table todos (id text primary key, list_id text, title text);"
        "create table members (list_id text, user_id text, primary key (list_id, user_id));"
        "create table copies (owner text, body text); alter table copies replica identity full;"
        "alter table notes alter body set storage external;"
    )
    return source_db


MODES: tuple[CheckpointMode, ...] = ("legacy", "requests")
FIRST_OFTEN = [("node", "ndjson"), ("node", "websocket"), ("python", "ndjson")]
MODES_OFTEN = [("node", "ndjson", "requests"), ("python", "ndjson", "legacy")]


@pytest.fixture
def opened(tables: SourceDb, deploy: Deploy, serve: Serve, device_factory: DeviceFactory) -> Open:
    """`opened("a", …)`: connected devices of these users, once the tables are filled."""

    def start(
        *users: str, transport: Transport = "ndjson", checkpoint_mode: CheckpointMode = "legacy", sdk: Sdk = "node"
    ) -> Sequence[Device]:
        service = serve(deploy(RULES).start())
        given = {"transport": transport, "checkpoint_mode": checkpoint_mode, "sdk": sdk}
        devices = [connected(service, device_factory, user, **given) for user in users]
        for device in devices:
            device.wait_synced()
        return devices

    return start


def connected(service: Service, device_factory: DeviceFactory, user: str, **options: Any) -> Device:
    device = device_factory(service.endpoint, service.token(user), SCHEMA, upload_url=service.upload_url, **options)
    device.connect()
    return device


def truth(source: SourceDb, query: str, *columns: str) -> list[dict[str, object]]:
    return [dict(zip(columns, row, strict=True)) for row in source.fetch(query)]


def notes_of(source: SourceDb, owner: str) -> list[dict[str, object]]:
    query = f"select id, owner, body, n from notes where owner = '{owner}' order by id collate \"C\""
    return truth(source, query, "id", "owner", "body", "n")


def agree(device: Device, source: SourceDb, owner: str) -> None:
    """Wait until the device shows exactly what SQL says."""
    device.wait_for(NOTES, notes_of(source, owner))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sdk", "transport"), [pytest.param(*way, marks=[] if way in FIRST_OFTEN else [pytest.mark.long]) for way in WAYS]
)
def test_first_sync_and_every_change(tables: SourceDb, opened: Open, sdk: Sdk, transport: Transport) -> None:
    tables.execute("insert into notes select i::text, 'a', repeat('toast', i % 60), i from generate_series(1, 3000) i")
    tables.execute("insert into notes values ('big', 'a', repeat('t', 20000), 0)")
    (device,) = opened("a", sdk=sdk, transport=transport)
    agree(device, tables, "a")
    for change in (
        "insert into notes values ('new', 'a', null, null)",
        "update notes set body = 'changed' where n between 5 and 900",
        "update notes set n = n + 1 where id = 'big'",
        "delete from notes where n > 2500",
        "update notes set id = 'renamed' where id = '1'",
        "truncate notes",
        "insert into notes values ('after', 'a', 'x', 1)",
    ):
        tables.execute(change)
        agree(device, tables, "a")


def test_every_type_reaches_device(
    source_db: SourceDb, deploy: Deploy, serve: Serve, device_factory: DeviceFactory, sdk: Sdk
) -> None:
    skip_without("xml", source_db.connection)
    source_db.execute(CUSTOM_TYPES)
    names = [f"c{number}" for number in range(len(CASES))]
    columns = ", ".join(f"{name} {case.type}" for name, case in zip(names, CASES, strict=True))
    source_db.execute(f"create table types (id text primary key, owner text, {columns})")
    values = [case.values[0][0] for case in CASES]

    def insert(row_id: str) -> None:
        source_db.execute(f"insert into types values (%s, 'a'{', %s' * len(values)})", row_id, *values)

    insert("snapshot")
    service = serve(deploy(TYPES).start())
    insert("stream")
    # `data` is the text that arrived; a view would cast it to the type that the client's schema names
    device = device_factory(service.endpoint, service.token("a"), {"types": {"owner": "text"}}, sdk=sdk)
    device.connect()
    count = "SELECT count(*) AS n FROM ps_oplog WHERE row_type = 'types'"
    device.wait_for(count, [{"n": 2}])
    for name, case in zip(names, CASES, strict=True):
        expected = case.values[0][1]
        path = f"json_extract(data, '$.{name}')"
        (seen, again) = device.query(
            f"SELECT iif(typeof({path}) = 'real', {path}, CAST({path} AS TEXT)) AS value, typeof({path}) AS type"
            " FROM ps_oplog WHERE row_type = 'types'"
        )
        assert seen == again, f"{case.type}: snapshot and stream differ"
        match expected:
            case None | bytes():
                assert seen["type"] == "null", case.type
            case int():
                assert seen == {"value": str(expected), "type": "integer"}, case.type
            case float():
                assert seen["type"] == "real", case.type
                assert float(str(seen["value"])) == expected, case.type
            case str():
                assert seen == {"value": expected, "type": "text"}, case.type


def test_rows_of_others_stay_hidden(tables: SourceDb, opened: Open, sdk: Sdk) -> None:
    tables.execute(
        "insert into notes select i::text, (array['a','b'])[i % 2 + 1], 'x', i from generate_series(1, 40) i"
    )
    a, b = opened("a", "b", sdk=sdk)
    agree(a, tables, "a")
    agree(b, tables, "b")
    tables.execute("update notes set owner = 'b' where id = '2'")
    agree(a, tables, "a")
    agree(b, tables, "b")
    for device, other in ((a, "b"), (b, "a")):
        foreign = device.query(f"SELECT count(*) AS n FROM ps_oplog WHERE json_extract(data, '$.owner') = '{other}'")
        assert foreign == [{"n": 0}]


@pytest.mark.parametrize(
    ("sdk", "transport", "checkpoint_mode"),
    [
        pytest.param(*way, marks=[] if way in MODES_OFTEN else [pytest.mark.long])
        for way in ((*way, mode) for way, mode in product(WAYS, MODES))
    ],
)
def test_local_write_returns_without_flicker(
    tables: SourceDb, opened: Open, sdk: Sdk, transport: Transport, checkpoint_mode: CheckpointMode
) -> None:
    tables.execute("insert into notes values ('1', 'a', 'old', 1)")
    (device,) = opened("a", sdk=sdk, transport=transport, checkpoint_mode=checkpoint_mode)
    agree(device, tables, "a")
    device.watch("bodies", "SELECT body FROM notes WHERE id = '1'")
    for number in range(5):
        device.execute("UPDATE notes SET body = ?, n = ? WHERE id = '1'", f"new {number}", number)
        wait_until(lambda: device.watch_results("bodies")[-1:] == [[{"body": f"new {number}"}]], "the write to show")  # noqa: B023
        device.wait_confirmed()
        # A commit of somebody else, so that a checkpoint from before the upload would show
        tables.execute("insert into notes values (%s, 'a', 'other', 0)", f"other {number}")
        agree(device, tables, "a")
    shown = [results[0]["body"] for results in device.watch_results("bodies")]
    steps = [body for position, body in enumerate(shown) if position == 0 or shown[position - 1] != body]
    assert steps == ["old", *(f"new {number}" for number in range(5))]
    assert tables.fetch("select body from notes where id = '1'") == [("new 4",)]


def test_offline_writes_arrive(tables: SourceDb, opened: Open, sdk: Sdk) -> None:
    tables.execute("insert into notes values ('1', 'a', 'x', 1), ('2', 'a', 'y', 2)")
    a, other = opened("a", "a", sdk=sdk)
    a.disconnect()
    a.execute("INSERT INTO notes (id, owner, body, n) VALUES ('3', 'a', 'made offline', 3)")
    a.execute("DELETE FROM notes WHERE id = '2'")
    tables.execute("update notes set body = 'meanwhile' where id = '1'")
    a.connect()
    a.wait_confirmed()
    for device in (a, other):
        device.wait_for(
            "SELECT id, body FROM notes ORDER BY id",
            [{"id": "1", "body": "meanwhile"}, {"id": "3", "body": "made offline"}],
        )


def test_device_survives_replicator_restart(
    tables: SourceDb, deploy: Deploy, serve: Serve, device_factory: DeviceFactory, sdk: Sdk
) -> None:
    tables.execute("insert into notes values ('1', 'a', 'x', 1)")
    deployment = deploy(RULES).start()
    service = serve(deployment)
    device = connected(service, device_factory, "a", sdk=sdk)
    agree(device, tables, "a")
    deployment.stop()
    tables.execute("insert into notes values ('2', 'a', 'while away', 2)")
    deployment.start()
    agree(device, tables, "a")


@pytest.mark.long
def test_device_ahead_of_rebuilt_store(
    tables: SourceDb, deploy: Deploy, serve: Serve, device_factory: DeviceFactory, sdk: Sdk
) -> None:
    tables.execute("insert into notes select i::text, 'a', 'x', i from generate_series(1, 500) i")
    deployment = deploy(RULES).start()
    service = serve(deployment)
    device = connected(service, device_factory, "a", sdk=sdk)
    agree(device, tables, "a")
    tables.execute("update notes set body = 'later' where n > 400")
    agree(device, tables, "a")
    service.stop()
    deployment.close()
    shutil.rmtree(deployment.directory)
    tables.execute("delete from notes where n < 100; update notes set body = 'rebuilt' where n = 450")
    deployment.start()
    service.start()
    agree(device, tables, "a")
    tables.execute("insert into notes values ('new', 'a', 'live again', 0)")
    agree(device, tables, "a")
