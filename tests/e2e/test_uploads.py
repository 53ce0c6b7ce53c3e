"""Devices with the connector that the docs show, or that of the Python client: what they write is in the source, and
refusals hold up nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from tests.support.fix_devices import Device, DeviceFactory, Row, Sdk
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.fix_upload import NOTES
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs" / "uploads.md"
RULES = auto_streams(mine="SELECT * FROM notes WHERE owner = auth.user_id()")
SCHEMA = {
    "notes": {"owner": "text", "title": "text", "n": "integer"},
    "upload_refusals": dict.fromkeys(("at", "message", "code", "op", "type", "row_id", "writes"), "text"),
}
SHOWN = "SELECT id, title, n FROM notes ORDER BY id"

Open = Callable[..., Device]


@pytest.fixture
def opened(
    source_db: SourceDb,
    upload_role: str,
    deploy: Deploy,
    serve: Callable[..., Service],
    device_factory: DeviceFactory,
    tmp_path: Path,
    sdk: Sdk,
) -> Open:
    """`opened("ann", name="phone")`: a connected device, with the docs' connector."""
    source_db.execute(NOTES)
    deployment = deploy(RULES).start()
    prepare_uploads(UploadSettings(deployment.settings, upload_role, {"notes": TableRule("public", "notes")}))
    service = serve(deployment, upload={"role": upload_role, "tables": {"notes": {}}})
    (code,) = re.findall(r"```js\n(export class Connector.+?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    connector = tmp_path / "connector.mjs"
    connector.write_text(code, encoding="utf-8")

    def start(user: str, name: str | None = None, raw: Mapping[str, str] | None = None) -> Device:
        schema = {table: columns for table, columns in SCHEMA.items() if table not in (raw or ())}
        device = device_factory(
            service.endpoint, service.token(user), schema,
            name=name, connector=connector, local_only=["upload_refusals"], raw=raw, sdk=sdk,
        )  # fmt: skip
        device.connect()
        device.wait_synced()
        return device

    return start


def insert(row_id: str, title: str) -> tuple[str, Sequence[str]]:
    return "INSERT INTO notes (id, owner, title) VALUES (?, 'ann', ?)", [row_id, title]


def test_offline_writes_arrive_or_are_undone(source_db: SourceDb, opened: Open) -> None:
    phone, tablet = opened("ann"), opened("ann")
    phone.disconnect()
    phone.transaction(insert("1", "milk"), insert("2", "bread"))
    phone.transaction(insert("3", "fine"), insert("4", ""))  # which the table does not take
    phone.execute("UPDATE notes SET n = 5 WHERE id = '1'")
    phone.execute("DELETE FROM notes WHERE id = '2'")
    phone.connect()
    phone.wait_confirmed()
    for device in (phone, tablet):
        device.wait_for(SHOWN, [{"id": "1", "title": "milk", "n": 5}])
    assert source_db.fetch("select id, title, n from notes") == [("1", "milk", 5)]
    assert source_db.fetch("select first_op, last_op from headwater_upload.dead_letters") == [(3, 4)]


@pytest.mark.parametrize("sdk", ["node"])
def test_local_tables_sync(source_db: SourceDb, opened: Open) -> None:
    source_db.execute("insert into notes (id, owner, title, n) values ('0', 'ann', 'first', 7)")
    table = "CREATE TABLE notes (id TEXT PRIMARY KEY, owner TEXT NOT NULL, title TEXT, n INTEGER) STRICT"
    phone, tablet = opened("ann", raw={"notes": table}), opened("ann")
    phone.transaction(insert("1", "milk"), insert("2", "bread"))
    phone.execute("UPDATE notes SET n = n + 1 WHERE id = '0'")
    phone.execute("INSERT INTO notes (id, owner) VALUES ('1', 'ann') ON CONFLICT (id) DO UPDATE SET title = 'oat milk'")
    phone.transaction(insert("3", ""))  # which the table does not take
    phone.execute("DELETE FROM notes WHERE id = '2'")
    phone.wait_confirmed()
    rows = [("0", "first", 8), ("1", "oat milk", None)]
    assert source_db.fetch("select id, title, n from notes order by id") == rows
    for device in (phone, tablet):
        device.wait_for(SHOWN, [dict(zip(("id", "title", "n"), row, strict=True)) for row in rows])
    assert phone.query("SELECT type, row_id FROM upload_refusals") == [{"type": "notes", "row_id": "3"}]


def test_refusals_are_shown_until_handled(source_db: SourceDb, opened: Open) -> None:
    source_db.execute("insert into notes values ('1', 'ann', 'milk')")
    phone = opened("ann")
    shown = "SELECT id, message, code, op, type, row_id, json_array_length(writes) AS writes FROM upload_refusals"
    phone.watch("refused", f"{shown} ORDER BY CAST(id AS INTEGER)")
    phone.transaction(("UPDATE notes SET n = 7 WHERE id = '1'", []), ("UPDATE notes SET title = '' WHERE id = '1'", []))
    phone.execute("UPDATE notes SET owner = 'ben' WHERE id = '1'")
    phone.wait_confirmed()
    empty: Row = {"id": "1", "message": "A value is not allowed here.", "code": "23514", "writes": 2}
    given: Row = {"id": "2", "message": "You may not change this.", "code": "42501", "writes": 1}
    same: Row = {"op": "PATCH", "type": "notes", "row_id": "1"}
    phone.wait_for(f"{shown} ORDER BY CAST(id AS INTEGER)", [{**empty, **same}, {**given, **same}])
    phone.wait_for(SHOWN, [{"id": "1", "title": "milk", "n": None}])
    assert phone.status()["upload_error"] is None
    source_db.execute("update headwater_upload.dead_letters set state = 'discarded' where id = 2")
    phone.check_refusals()
    phone.wait_for(f"{shown} ORDER BY id", [{**empty, **same}])
    wait_until(lambda: phone.watch_results("refused")[-1] == [{**empty, **same}], "the watched query")


@pytest.mark.long
def test_hundreds_of_transactions_in_order(source_db: SourceDb, opened: Open) -> None:
    phone = opened("ann")
    phone.disconnect()
    phone.transaction(insert("1", "counted"))
    for number in range(250):
        phone.execute("UPDATE notes SET n = ? WHERE id = '1'", number)
    phone.connect()
    phone.wait_confirmed()
    phone.wait_for(SHOWN, [{"id": "1", "title": "counted", "n": 249}])
    assert source_db.fetch("select count(*), max(last_op) from headwater_upload.taken") == [(251, 251)]


def test_client_id_is_as_documented(source_db: SourceDb, opened: Open, tmp_path: Path) -> None:
    phone = opened("ann", "phone")
    phone.transaction(insert("1", "a"))
    phone.wait_confirmed()
    known = phone.client_id()
    phone.clear()
    assert phone.client_id() == known
    phone.transaction(insert("2", "b"))
    phone.connect()
    phone.wait_confirmed()
    ops = "select client_id = %s, array_agg(t.last_op order by t.last_op) from headwater_upload.taken t"
    ops += " join headwater_upload.clients using (client) group by client_id order by 2"
    assert source_db.fetch(ops, known) == [(True, [1, 2])]
    phone.process.stop()
    for file in tmp_path.glob("phone.db*"):
        file.unlink()
    phone = opened("ann", "phone")
    phone.transaction(insert("3", "c"))
    phone.wait_confirmed()
    assert source_db.fetch(ops, known) == [(False, [1]), (True, [1, 2])]
    assert source_db.fetch("select id from notes order by id") == [("1",), ("2",), ("3",)]
