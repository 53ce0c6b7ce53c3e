"""The stock SDK while a database is added to the service's configuration and taken out of it again: its tables come and
go on the device, and nothing happens to those of the other database."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.source.upload.prepare import prepare_uploads
from tests.support.fix_devices import Device, DeviceFactory, Row
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import client_auth, connection_to, free_port, token_for
from tests.support.processes import Running
from tests.support.read_uploads import read_uploads
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DOCS = Path(__file__).parents[2] / "docs" / "uploads.md"
ORDERS_ALONE = """
config: {edition: 3}
streams:
  orders: {auto_subscribe: true, query: SELECT * FROM orders}
"""
BOTH = f"""{ORDERS_ALONE}
  deals: {{auto_subscribe: true, query: 'SELECT * FROM "crm.public".deals'}}
"""
TABLE = """
create table {name} (id text primary key, title text);
insert into {name} values ('1', 'one'), ('2', 'two');
alter table {name} enable row level security;
create policy everybody on {name} using (true);
create publication headwater for table {name};
"""
SCHEMA = {
    "orders": {"title": "text"},
    "deals": {"title": "text"},
    "upload_refusals": dict.fromkeys(("at", "message", "code", "op", "type", "row_id", "writes"), "text"),
}
ABSENT = "the sync config names tables of source crm, which is not configured"
OURS, THEIRS = "SELECT id, title FROM orders ORDER BY id", "SELECT id, title FROM deals ORDER BY id"


def titled(*titles: str) -> list[Row]:
    """The rows with the ids from 1 on."""
    return [{"id": str(number), "title": title} for number, title in enumerate(titles, 1)]


class Changing:
    """A service whose config file changes; it is started again each time."""

    def __init__(self, orders: SourceDb, deals: SourceDb, role: str, folder: Path, launch: Launch) -> None:
        self._launch = launch
        self._running: Running | None = None
        self.metrics = free_port()
        self._connections: list[dict[str, object]] = []
        for source in (orders, deals):
            settings = source.settings()
            prefix = {"slot_name_prefix": f"hw_{source.name}_"}
            self._connections.append(connection_to(settings.port, settings.database) | prefix)
        self._connections[1]["tag"] = "crm"
        self._role = role
        self.config: dict[str, Any] = {
            "storage": {"type": "sqlite", "path": str(folder / "store")},
            "host": "127.0.0.1",
            "port": free_port(),
            "api": {"workers": 1},
            "client_auth": client_auth(),
            "telemetry": {"prometheus_port": self.metrics},
        }

    def start(self, rules: str, *, sources: int) -> Running:
        """Start it, again if it runs, with so many of the sources."""
        if self._running is not None:
            self._running.ask_to_end()
            assert self._running.wait() == 0
        tables = {"orders": {}, **({"deals": {"source": "crm"}} if sources == 2 else {})}
        changed = {
            "replication": {"connections": self._connections[:sources], "remove_after_minutes": 0},
            "sync_config": {"content": rules},
            "upload": {"role": self._role, "tables": tables},
        }
        self._running = self._launch("serve", self.config | changed)
        self._running.wait_ready(self.config["port"])
        return self._running

    def sent(self) -> int:
        """How many ops it has sent to devices since it was started."""
        page = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics").text
        (found,) = re.findall(r"^powersync_operations_synced_total (\S+)$", page, re.MULTILINE)
        return int(float(found))


@pytest.mark.parametrize("first", ["rules", "connections"])
def test_source_is_added_and_removed_under_a_device(
    source_db: SourceDb,
    crm_db: SourceDb,
    upload_role: str,
    launch: Launch,
    device_factory: DeviceFactory,
    tmp_path: Path,
    first: str,
) -> None:
    """Of the rules and the connections, one is changed `first`, when adding and when removing."""
    source_db.execute(TABLE.format(name="orders"))
    crm_db.execute(TABLE.format(name="deals"))
    given = {"role": upload_role, "tables": {"orders": {}, "deals": {"source": "crm"}}}
    upload, errors = read_uploads(given, (source_db.settings(), crm_db.settings(tag="crm")))
    assert upload is not None, errors
    for each in upload.by_source().values():
        prepare_uploads(each)
    service = Changing(source_db, crm_db, upload_role, tmp_path, launch)
    service.start(ORDERS_ALONE, sources=1)
    device = opened(device_factory, service, tmp_path)
    device.connect()
    device.wait_for(OURS, titled("one", "two"))

    between = service.start(BOTH, sources=1) if first == "rules" else service.start(ORDERS_ALONE, sources=2)
    source_db.execute("insert into orders values ('3', 'meanwhile')")
    device.wait_for(OURS, titled("one", "two", "meanwhile"))
    assert (ABSENT in between.output) is (first == "rules")
    service.start(BOTH, sources=2)
    device.wait_for(THEIRS, titled("one", "two"))
    device.execute("UPDATE orders SET title = 'mine' WHERE id = '1'")
    device.execute("UPDATE deals SET title = 'mine' WHERE id = '1'")
    device.wait_confirmed()
    for db, table in ((source_db, "orders"), (crm_db, "deals")):
        assert db.fetch(f"select title from {table} where id = '1'") == [("mine",)]
        db.execute(f"update {table} set title = 'theirs' where id = '2'")
    device.wait_for(THEIRS, titled("mine", "theirs"))
    device.wait_for(OURS, titled("mine", "theirs", "meanwhile"))

    device.disconnect()
    device.execute("UPDATE deals SET title = 'late' WHERE id = '1'")
    device.execute("UPDATE orders SET title = 'late' WHERE id = '1'")
    between = service.start(ORDERS_ALONE, sources=2) if first == "rules" else service.start(BOTH, sources=1)
    device.connect()
    source_db.execute("insert into orders values ('4', 'more')")
    wait_until(lambda: len(device.query(OURS)) == 4, "a change of the other source")
    device.wait_confirmed()
    device.wait_for(THEIRS, [])
    assert (ABSENT in between.output) is (first == "connections")
    refused = device.query("SELECT code, type, row_id FROM upload_refusals")
    if first == "rules":  # the source was still there to be written to
        assert refused == []
        assert crm_db.fetch("select title from deals where id = '1'") == [("late",)]
    else:
        assert refused == [{"code": "HW_6110", "type": "deals", "row_id": "1"}]
        assert crm_db.fetch("select title from deals where id = '1'") == [("mine",)]
    service.start(ORDERS_ALONE, sources=1)
    source_db.execute("insert into orders values ('5', 'last')")
    device.wait_for(OURS, titled("late", "theirs", "meanwhile", "more", "last"))
    assert device.query(THEIRS) == []
    assert service.sent() == 1, "nothing is downloaded again"


def opened(device_factory: DeviceFactory, service: Changing, folder: Path) -> Device:
    """A device with the connector of the docs."""
    (code,) = re.findall(r"```js\n(export class Connector.+?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    connector = folder / "connector.mjs"
    connector.write_text(code, encoding="utf-8")
    address = f"http://127.0.0.1:{service.config['port']}"
    local = ["upload_refusals"]
    return device_factory(address, token_for("ann"), SCHEMA, connector=connector, local_only=local)
